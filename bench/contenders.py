"""Who is timed at a point: kernels, or a stage of them, and beside them torch._grouped_mm on weights of 16 bits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..contract.banks import ExpertBanks
from ..reference.formats import dequantize_blocks
from ..reference.moe import DecodedExperts
from .roofline import FUSED, Work, unquantized, work
from .stages import Function, Given, Output, stage_of
from .subjects import Chosen
from .truth import Truth, enclose_gemm, judge_rows

GROUPED = "grouped_mm bf16"
WORK = {"blocks": "align", "gate_up_interleaved": FUSED}  # as roofline.py names what a stage gives


@dataclass(frozen=True, eq=False)
class Contender:
    """`function` is timed once `check` has found its output right: check(output) is its error, or raises
    AssertionError. `same` says that equal inputs give equal bytes. `sampled` are the rows that a digest is of, where
    the whole output is too much.
    """

    label: str
    function: Function
    check: Callable[[Output], float | None]
    work: Work
    operand: str = "bf16"
    same: bool = True
    sampled: Callable[[Output], Tensor] | None = None
    facts: tuple[tuple[str, object], ...] = ()


def of_kernel(chosen: Chosen, stage: str, prepared: object, given: Given, truth: Truth, hit: int) -> Contender:
    """`stage` of the chosen kernel on `given`; `hit` experts are named by some route."""
    found, label = stage_of(chosen, stage), chosen.subject.label
    gives, kernel, shape = found.gives, chosen.kernel, given.layer.shape
    # The rows of a whole layer are its digest, as in golden/exact.json; a stage's may be gigabytes.
    sampled = None if gives in ("layer", "blocks") else lambda out: truth.sampled(out, gives)
    return Contender(
        label,
        found.build(chosen, prepared, given),
        lambda out: truth.check(out, gives, kernel, label),
        work(WORK.get(gives, gives), shape, given.tokens, hit),
        chosen.operand,
        kernel.promise.repeatable,
        sampled,
        (("planned", kernel.name), *([("reason", chosen.plan.reason)] if chosen.plan else [])),
    )


class Grouped:
    """The GEMMs of one layer by torch._grouped_mm: rows gathered and sorted by expert beforehand, weights in bf16.

    The weights are e2m1 * block scale, which bf16 holds exactly, without the globals: so its result has an enclosure,
    too. They take four times the memory of the banks, and are made once for a layer.
    """

    def __init__(self, banks: ExpertBanks, stages: Sequence[str]):
        """The weights of those GEMMs that `stages` have."""
        self.experts, self.weights = banks.experts, {}
        for name in ("gate_up", "down"):
            if {name, "layer"} & set(stages):
                packed, scale = getattr(banks, f"{name}_packed"), getattr(banks, f"{name}_scale")
                self.weights[name] = _decoded(packed, scale)

    def contender(self, stage: str, given: Given, truth: Truth, hit: int) -> Contender:
        """`stage` is "gate_up", "down", or "layer" for both GEMMs, one after the other."""
        ids = given.topk_ids.flatten()
        order = ids.argsort(stable=True)
        ends = torch.bincount(ids, minlength=self.experts).cumsum(0).to(torch.int32)
        gemms = [name for name in ("gate_up", "down") if stage in (name, "layer")]
        operands = [(_sorted(name, order, given), self.weights[name]) for name in gemms]

        def run() -> Output:
            return tuple(torch._grouped_mm(x, weight, offs=ends) for x, weight in operands)

        def check(outs: Output) -> float:
            each = zip(outs, operands, gemms, strict=True)
            return max(_check_sorted(out, both, name, order, truth) for out, both, name in each)

        return Contender(
            GROUPED,
            run,
            check,
            unquantized(given.layer.shape, stage, given.tokens, hit),
            sampled=lambda outs: torch.cat([out[:: max(len(out) // 64, 1)].flatten() for out in outs]),
        )


def _sorted(name: str, order: Tensor, given: Given) -> Tensor:
    """What the GEMM `name` multiplies: a row per route, in `order`."""
    return given.hidden_states[order // given.topk_ids.shape[1]] if name == "gate_up" else given.act[order]


def _decoded(packed: Tensor, scale: Tensor) -> Tensor:
    """bf16 [E, K, N], whose columns lie one after the other: as grouped_mm takes them."""
    experts, rows, half = packed.shape
    weights = packed.new_empty(experts, rows, 2 * half, dtype=torch.bfloat16)
    for expert in range(experts):
        weights[expert] = dequantize_blocks(packed[expert], scale[expert])
    return weights.transpose(1, 2)


def _check_sorted(out: Tensor, operands: tuple[Tensor, Tensor], name: str, order: Tensor, truth: Truth) -> float:
    """Judges the sampled routes of `out` [R, N], whose row r is that of route order[r]."""
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    rows, banks, form = place[truth.routes], truth.given.banks, truth.form()
    weights = DecodedExperts(getattr(banks, f"{name}_packed"), getattr(banks, f"{name}_scale"))
    ids = truth.given.topk_ids.flatten()[truth.routes]
    interval = enclose_gemm(operands[0][rows], weights, None, ids, None, form)
    return judge_rows(out, out[rows], interval, f"{GROUPED} {name}")
