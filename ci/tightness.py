"""How tight `judge.bounded` is: a kernel's observed errors beside the enclosure, and the least scale error it sees.

`python -m nvfp4_suite.ci.tightness` runs layers with the hidden and intermediate sizes of published checkpoints through
every kernel on this host's GPU, and prints per kernel, layer and dtype:

    width      the median half-width of an element's enclosure, in units of the output's RMS
    error      the observed error over that half-width, median and largest; 1 is as much as the bound allows, and is
               reached where a single rounding on the way is uncertain and went the other way
    sees       the smallest error of scale, in percent, that makes `bounded` fail: of the whole, and of expert 0 alone
"""

import argparse
import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from ..contract.case import Case, Inputs, random_inputs
from ..contract.kernel import DTYPES, Kernel
from ..contract.shapes import CHECKPOINTS, LayerShape
from ..kernels.registry import KERNELS
from ..reference import bounds, judge
from .recording import layer_output

EXPERTS, TOP_K, TOKENS = 8, 4, 64  # few experts: float64 weights of 256 would not fit
PERCENTS = [round(0.05 * step, 2) for step in range(1, 101)]


@dataclasses.dataclass(frozen=True)
class Row:
    """The figures of one kernel and case, as the module explains them; None where even 5 % goes unseen."""

    width: float
    median: float
    largest: float
    sees_whole: float | None
    sees_expert: float | None


def families() -> dict[str, Case]:
    """One case per pair of sizes in CHECKPOINTS and dtype."""
    cases = {}
    for name, shape in CHECKPOINTS.items():
        for dtype in DTYPES:
            cut = LayerShape(EXPERTS, TOP_K, shape.hidden, shape.intermediate)
            cases[f"{name} {dtype}"] = Case(cut, TOKENS, inputs="random", dtype=dtype)
    return cases


def measure(kernel: Kernel, case: Case, device: str) -> Row:
    """Runs `kernel` on the case's inputs and compares its output with the enclosure; AssertionError outside of it."""
    inputs = random_inputs(case).to(device)
    interval = enclosed(inputs, case, kernel.promise.rounding)
    actual = layer_output(kernel, inputs, case)
    judge.bounded(actual, interval, case=case.id, kernel=kernel.name)
    error = (actual.double() - interval.expected).abs()
    width = torch.maximum(interval.upper - interval.expected, interval.expected - interval.lower)
    ratio = (error / width)[width > 0]
    rms = interval.expected.square().mean().sqrt()
    others = interval.routes.masked_fill((inputs.topk_ids == 0)[..., None], 0).sum(1)
    one_expert = interval.expected - others
    return Row(
        (width.median() / rms).item(),
        ratio.median().item(),
        ratio.max().item(),
        smallest_seen(lambda percent: actual.double() * (1 + percent / 100), interval),
        smallest_seen(lambda percent: actual.double() + one_expert * percent / 100, interval),
    )


def enclosed(inputs: Inputs, case: Case, rounding: str) -> bounds.Interval:
    tensors = (inputs.hidden_states, inputs.banks, inputs.topk_weights, inputs.topk_ids)
    return bounds.enclose(*tensors, rounding=rounding, **case.options)


def smallest_seen(faulty: Callable[[float], Tensor], interval: bounds.Interval) -> float | None:
    """The smallest of PERCENTS with which `faulty` gives an output that `bounded` refuses."""
    unseen, seen = -1, len(PERCENTS)
    while seen - unseen > 1:
        middle = (seen + unseen) // 2
        try:
            judge.bounded(faulty(PERCENTS[middle]).to(interval.dtype), interval)
        except AssertionError:
            seen = middle
        else:
            unseen = middle
    return PERCENTS[seen] if seen < len(PERCENTS) else None


def main() -> None:
    argparse.ArgumentParser(prog="nvfp4_suite.ci.tightness", description=__doc__.split("\n")[0]).parse_args()
    if not torch.cuda.is_available():
        raise SystemExit(f"tightness needs a CUDA GPU, but torch {torch.__version__} sees none on this host")
    print(f"{torch.cuda.get_device_name()}, {TOKENS} tokens, {EXPERTS} experts, top_k {TOP_K}")
    print(f"{'kernel':16}{'layer':24}{'width':>9}{'error':>9}{'largest':>9}{'sees':>8}{'expert':>8}")
    for name, kernel in KERNELS.items():
        for family, case in families().items():
            row = measure(kernel, case, "cuda")
            numbers = f"{row.width:9.1e}{row.median:9.1e}{row.largest:9.2f}"
            print(
                f"{name:16}{family:24}{numbers}{_percent(row.sees_whole):>7}{_percent(row.sees_expert):>8}", flush=True
            )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} %"


if __name__ == "__main__":
    main()
