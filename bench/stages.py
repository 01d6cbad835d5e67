"""One stage of a planned layer alone, as a function without arguments: what is captured, timed and judged.

A stage is made from a plan, what the kernel prepared of the banks, and `Given` tensors; what it makes beforehand (the
routing of a GEMM) is not timed. Where a stage is another function it has an entry of its own: "kernel/stage", or by the
device function that a plan launches there, "module.function". One whose gate_up applies the activation gives
"gate_up_activated", and one that rearranges activations first does it inside the function, so that its time counts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..kernels import hopper
from . import roofline
from .inputs import Inputs, bell
from .subjects import Chosen

ALPHA, LIMIT = 1.702, 7.0  # of swigluoai, as a layer has them by default

Output = Tensor | tuple[Tensor, ...]
Function = Callable[[], Output]


@dataclass(frozen=True)
class Stage:
    """`build(chosen, prepared, given)` makes the function; `gives` says what it returns, one of truth.JUDGES."""

    build: Callable[[Chosen, object, "Given"], Function]
    gives: str


class Given:
    """A layer's inputs, and random tensors for what stages take from earlier ones, made when they are asked for.

    R = T * top_k routes: `gate_up` [R, 2I] from gate_up to the activation, `act` [R, I] from there to down, `routes`
    [R, H] from down to the sum.
    """

    def __init__(self, inputs: Inputs):
        self.inputs = inputs

    def __getattr__(self, name: str):
        return getattr(self.inputs, name)

    @cached_property
    def gate_up(self) -> Tensor:
        return self._bell("gate_up", 2 * self.inputs.banks.intermediate)

    @cached_property
    def act(self) -> Tensor:
        return self._bell("act", self.inputs.banks.intermediate)

    @cached_property
    def routes(self) -> Tensor:
        return self._bell("routes", self.inputs.banks.hidden)

    def _bell(self, name: str, columns: int) -> Tensor:
        with torch.device(self.inputs.hidden_states.device):
            return bell(f"bench/{self.inputs.layer.name}/{name}", self.inputs.topk_ids.numel(), columns)


def layer(chosen: Chosen, prepared: object, given: Given) -> Function:
    """The whole layer, through the kernel's entry; with a tile of its own, through the plan that has it."""
    rows = given.hidden_states, given.topk_weights, given.topk_ids
    options = given.options
    if not chosen.subject.tile:
        return lambda: chosen.kernel.run(prepared, *rows, **options)
    del options["activation"]  # the plan has it
    experts = chosen.subject.kernels.experts
    return lambda: experts.run(chosen.plan, rows[0], prepared, *rows[1:], **options)


def align(chosen: Chosen, prepared: object, given: Given) -> Function:
    """The routing: which routes share a block, and the expert of each."""
    experts = chosen.subject.kernels.experts
    return lambda: experts.route_blocks(chosen.plan, given.topk_ids)


def gate_up(chosen: Chosen, prepared: object, given: Given) -> Function:
    bank = (prepared.gate_up_packed, prepared.gate_up_scale, prepared.gate_up_global)
    return _gemm(chosen, "gate_up", given.hidden_states, bank, given)


def down(chosen: Chosen, prepared: object, given: Given) -> Function:
    return _gemm(chosen, "down", given.act, (prepared.down_packed, prepared.down_scale, prepared.down_global), given)


def activation(chosen: Chosen, prepared: object, given: Given) -> Function:
    experts, ids, rows = chosen.subject.kernels.experts, given.topk_ids, given.gate_up
    rest = {"topk_ids": ids, "experts": prepared.experts, "alpha": ALPHA, "limit": LIMIT}

    def run() -> Tensor:
        out = rows.new_empty(ids.numel(), prepared.intermediate)
        experts.by_columns(chosen.plan.launch("activation"), gate_up=rows, out=out, **rest)
        return out

    return run


def sum_routes(chosen: Chosen, prepared: object, given: Given) -> Function:
    experts, ids, routes = chosen.subject.kernels.experts, given.topk_ids, given.routes
    rest = {"top_k": ids.shape[1], "topk_ids": ids, "experts": prepared.experts}

    def run() -> Tensor:
        out = torch.empty_like(given.hidden_states)
        experts.by_columns(chosen.plan.launch("sum_routes"), route_out=routes, out=out, **rest)
        return out

    return run


def _gemm(chosen: Chosen, stage: str, x: Tensor, bank: tuple[Tensor, ...], given: Given) -> Function:
    """The GEMM or GEMV of `stage` on the rows `x`, routed beforehand."""
    experts, launch = chosen.subject.kernels.experts, chosen.plan.launch(stage)
    routed = experts.routed_by(chosen.plan, given.topk_weights, given.topk_ids)
    return lambda: experts.gemm(launch, x, *bank, *routed)


def hopper_gate_up(chosen: Chosen, prepared: object, given: Given) -> Function:
    """Its time counts that the activations are interleaved."""
    layers, plan, x = chosen.subject.kernels.hopper_layer, chosen.plan, given.hidden_states
    bank = (prepared.gate_up_packed, prepared.gate_up_scale, prepared.gate_up_global)
    routed = chosen.subject.kernels.experts.routed_by(plan, given.topk_weights, given.topk_ids)
    limits = {"activation_alpha": ALPHA, "activation_limit": LIMIT}
    return lambda: layers.gate_up(
        plan.launch("gate_up"), layers.interleave_k(plan.launch("interleave_k"), x), bank, routed, **limits
    )


def hopper_down(chosen: Chosen, prepared: object, given: Given) -> Function:
    """Of interleaved activations, as its gate_up stores them."""
    layers, plan = chosen.subject.kernels.hopper_layer, chosen.plan
    bank = (prepared.down_packed, prepared.down_scale, prepared.down_global)
    routed = chosen.subject.kernels.experts.routed_by(plan, given.topk_weights, given.topk_ids)
    act = layers.interleave_k(plan.launch("interleave_k"), given.act)
    return lambda: layers.down(plan.launch("down"), act, bank, routed)


STAGES: dict[str, Stage] = {
    "layer": Stage(layer, "layer"),
    "align": Stage(align, "blocks"),
    "gate_up": Stage(gate_up, "gate_up"),
    "activation": Stage(activation, "activation"),
    "down": Stage(down, "down"),
    "sum": Stage(sum_routes, "sum"),
    hopper.GATE_UP: Stage(hopper_gate_up, "gate_up_interleaved"),
    hopper.DOWN: Stage(hopper_down, "down"),
}


def stage_of(chosen: Chosen, name: str) -> Stage:
    """How `chosen` does the stage `name`. Raises ValueError for a stage, or a kernel, that cannot be timed so."""
    launch = chosen.plan.launch(name) if chosen.plan else None
    names = (launch.kernel if launch else "", f"{chosen.kernel.name}/{name}", name)
    found = next((STAGES[one] for one in names if one in STAGES), None)
    if found is None:
        raise ValueError(f"--stage is {name!r}, but should be one of {', '.join(roofline.STAGES)}")
    needs = {"align": "list_blocks", "sum": "sum_routes"}.get(name, name)
    shared, plan = name != "layer" and found is STAGES.get(name), chosen.plan
    if shared and (plan is None or plan.launch("quantize") or not plan.launch(needs)):
        raise ValueError(f"--stage is {name!r}, but {chosen.kernel.name} has no such stage that is timed alone")
    return found
