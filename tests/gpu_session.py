"""A session on GPUs, of one kind: it leases them, gives every worker its place, and says why a worker has ended."""

import importlib.util
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from nvfp4_suite.ci import gpus, host, leases
from nvfp4_suite.ci.gpus import NoGpu
from nvfp4_suite.ci.leases import Busy, Lease, Placement, Slot

from . import failures, gpu_worker
from .gpu_usage import Usage
from .gpu_worker import Worker
from .manifest import Manifest

STARTS = 3  # workers that may end before they are ready, one after another on one device, until it counts as lost
LEASES = pytest.StashKey[tuple[list[Lease], list[Busy]]]()


def auto_workers(config) -> int:
    """How many workers `-n auto` stands for; leases the devices that they get."""
    mine = _leases(config)
    return len(mine) * leases.workers_per_device([one.device for one in mine], leases.cores())


def start(config, problems: set[str]) -> None:
    """Makes this process one of a session on GPUs: its controller, a worker of it, or both in one.

    Torch keeps no kernels that it makes itself: workers which made the folder for them at once got a warning, an error
    here, as one without a home that can be written would.
    """
    os.environ.setdefault("USE_PYTORCH_KERNEL_CACHE", "0")
    try:
        if hasattr(config, "workerinput"):
            given = config.workerinput["gpu"]
            plugin = Worker(gpu_worker.from_plain(given), alone=False, limits=Path(config.workerinput["limits"]))
        elif workers := len(config.getoption("tx", None) or []):
            leased = _leases(config, most=workers)
            leases.refuse_crowds([one.device for one in leased], workers)
            plugin = Controller(leased, workers, problems)
        else:
            (one,) = _leases(config, most=1)
            plugin = Worker(Slot(one.visible, 0, leases.budget(one.device, 1)), alone=True)
    except NoGpu as error:
        raise pytest.UsageError(f"--engine gpu {error}") from None
    config.pluginmanager.register(plugin, "gpu session")
    devices = list({slot.visible.device.uuid: slot.visible.device for slot in plugin.slots}.values())
    config.pluginmanager.register(Manifest(config, devices[0].capability, problems))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Usage(devices))
    failures.start(config, devices)


def header(config) -> str:
    """As "torch 2.11.0+cu130, triton 3.8.0, ..., 2 x NVIDIA H200, 8 workers, 33.8 GiB each"."""
    slots = config.pluginmanager.getplugin("gpu session").slots
    budgets = [slot.budget for slot in slots if slot.budget is not None]
    memory = f", {min(budgets) / 2**30:.1f} GiB each" if budgets else ""
    if budgets and min(budgets) < (most := leases.NEEDED - leases.CONTEXT):
        memory += f" (the largest tests take up to {most / 2**30:.0f})"
    busy = len(config.stash[LEASES][1]) if LEASES in config.stash else 0
    environment = host.line(config.stash[failures.ENVIRONMENT])
    return f"{environment}, {len(slots)} workers{memory}" + (f"; {busy} GPUs are others'" if busy else "")


def _leases(config, most: int | None = None) -> list[Lease]:
    """This session's devices, leased once. Raises UsageError where there are none, none is free, or kinds differ."""
    if LEASES not in config.stash:
        try:
            config.stash[LEASES] = _leased(most)
        except NoGpu as error:
            raise pytest.UsageError(f"--engine gpu {error}") from None
        config.add_cleanup(lambda: [one.release() for one in config.stash[LEASES][0]])
    return config.stash[LEASES][0]


def _leased(most: int | None) -> tuple[list[Lease], list[Busy]]:
    if not importlib.util.find_spec("torch"):
        raise NoGpu("needs torch with CUDA, but this Python has no torch")
    how = "`python -m nvfp4_suite.ci.gpu_tests` runs one for each, and CUDA_VISIBLE_DEVICES chooses"
    return leases.lease_mine(most, one_kind=how)


class Controller:
    """The pytest plugin of the process that starts the workers. It never touches a GPU itself.

    `problems` are lines for the end of the output, each of which fails the session.
    """

    def __init__(self, leased: list[Lease], workers: int, problems: set[str]):
        self.problems = problems
        self.placement = Placement(leased, workers)
        self.slots = self.placement.free
        self._limits = tempfile.TemporaryDirectory(prefix="time-limits-", ignore_cleanup_errors=True)
        self._ready: set[str] = set()
        self._unready: Counter[str] = Counter()
        self._started: dict[str, float] = {}
        self._dead: dict[str, str] = {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node):
        try:
            slot = self.placement.take(node.gateway.id)
        except NoGpu as error:
            pytest.exit(f"--engine gpu {error}", returncode=pytest.ExitCode.TESTS_FAILED)
        node.workerinput["gpu"] = gpu_worker.to_plain(slot)
        node.workerinput["limits"] = str(self._limits_of(node))

    def _limits_of(self, node) -> Path:
        return Path(self._limits.name, node.gateway.id)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodeready(self, node):
        self._ready.add(node.gateway.id)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        """A worker has ended. Where its device has gone, or starts no worker any more, no other worker gets it."""
        slot = self.placement.give_back(node.gateway.id)
        if not error or not slot:
            return
        device = slot.visible.device
        self._unready[device.uuid] = 0 if node.gateway.id in self._ready else self._unready[device.uuid] + 1
        lost, unready = gpus.is_lost(device.uuid), self._unready[device.uuid] >= STARTS
        if lost or unready:
            self.placement.lose(device.uuid)
            why = "NVML has lost it" if lost else f"{STARTS} workers in a row ended before their first test"
            self.problems.add(f"LOST GPU: {device}: {why}")

    def pytest_runtest_logstart(self, nodeid):
        self._started[nodeid] = time.monotonic()

    def pytest_runtest_logreport(self, report):
        for name, text in report.sections:
            if name == gpu_worker.DEAD:
                self._dead[report.nodeid] = text.splitlines()[0]

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem, report, sched):
        """Says of a test whose worker ended in it what is known of the reason."""
        took = time.monotonic() - self._started.get(crashitem, time.monotonic())
        path = self._limits_of(report.node)
        limit = float(path.read_text()) if path.exists() else None
        if crashitem in self._dead:
            report.longrepr = (
                f"its worker ended, so that others go on: the CUDA context is dead: {self._dead[crashitem]}"
            )
        elif limit and took >= limit:
            report.longrepr = f"no answer for {took:.0f} s, of {limit:.0f} allowed: a kernel that hangs, or a deadlock"
