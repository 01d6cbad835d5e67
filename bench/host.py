"""The GPU that a benchmark has to itself, and what a row says of it."""

import os
from dataclasses import dataclass, field

from ..ci import gpus, leases
from ..ci.environment import CHOOSES_GPUS, code_changing
from ..ci.gpus import NoGpu, Visible
from ..contract.gpus import Gpu, current
from .measure import Timer
from .yardsticks import Yardsticks


@dataclass(frozen=True)
class Host:
    """`facts` are what every row says of it; `line` is one for people. `lease` is kept as long as the process."""

    device: str
    gpu: Gpu
    timer: Timer
    facts: dict
    line: str
    yardsticks: Yardsticks = field(default_factory=Yardsticks)
    lease: object = None


def find() -> Host:
    """This process's first GPU, leased. Raises NoGpu where there is none, none is free, or other code would run."""
    if variable := code_changing():
        raise NoGpu(f"is told {variable}, which should be unset: other code would run")
    visible, lease = _leased()
    return on(visible, lease)


def on(visible: Visible, lease: object = None) -> Host:
    """The host of a GPU that this process may use, which somebody has leased. Raises NoGpu where torch sees none."""
    os.environ[CHOOSES_GPUS] = visible.spelling  # before torch looks
    import torch
    import triton

    if not torch.cuda.is_available():
        raise NoGpu(f"needs a CUDA GPU, but torch {torch.__version__} sees none on this host")
    from ..ci import host
    from .sensors import Sensors
    from .timing import GraphTimer

    report, sensors = host.report([visible.device]), Sensors(visible.device.uuid)
    facts = {"gpu": torch.cuda.get_device_name(), "triton": triton.__version__.split("+")[0]}
    facts |= {name: report[name] for name in ("torch", "driver", "assembler", "commit", "sources")}
    line = host.line(report) + (f", clocks unknown: {sensors.problem}" if sensors.problem else "")
    line += "" if lease else ", not leased: filelock is missing"
    return Host("cuda", current(0), GraphTimer(sensors), facts, line, lease=lease)


def _leased() -> tuple[Visible, object]:
    """The GPU, and the lease that keeps tests of this host off it."""
    try:
        (lease, *_), _ = leases.lease_mine(1, one_kind="name one in CUDA_VISIBLE_DEVICES")
    except ModuleNotFoundError:
        return gpus.mine()[0], None
    return lease.visible, lease
