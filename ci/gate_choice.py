"""Which of all gates a run compiles that is not asked for all of them. Pure: needs neither torch nor triton."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

from ..contract.gpus import Gpu
from ..contract.shapes import CHECKPOINTS, LayerShape
from ..kernels.launch import Launch
from ..kernels.plan import LayerPlan, plan_layer
from .gate_compile import FAMILIES
from .gate_known import known_failure
from .gate_outcome import Gate
from .gate_work import length
from .gates import DEFAULT_TRITON, is_size, launches, planning_triton, tile_name
from .plans import CARDS, TOKENS


def chosen(triton: str = DEFAULT_TRITON) -> tuple[Gate, ...]:
    """The part of `launches` that a run compiles unless it is asked for all, in the same order.

    Whole are the plans of golden/plans.json: what "auto" chooses in bf16 without weight_on_input, with and without
    input scales; but of launches that differ alone in how many steps of K their code has, only the longest. Of the
    rest, architectures that get the same PTX show the largest tile of every kernel with each instruction, the first to
    spill, and all together as few more as show at least once what `_shown` lists of each kernel.
    """
    gates = launches(triton)
    taken = {*_planned(gates, triton), *_largest(gates, triton)}
    shows = {gate: _shown(gate[1]) for gate in gates}
    seen = set().union(*(shows[gate] for gate in taken))
    while shows := {gate: left for gate, some in shows.items() if (left := some - seen)}:
        best = max(shows, key=lambda gate: (len(shows[gate]), -length(gate[1])))
        taken.add(best)
        seen |= shows[best]
    return tuple(gate for gate in gates if gate in taken)


def _planned(gates: Iterable[Gate], triton: str) -> list[Gate]:
    """Those of golden/plans.json, whatever stage they are in there."""
    planned = {
        (gpu.capability, launch)
        for gpu, shape, tokens, scales in product(CARDS, CHECKPOINTS.values(), TOKENS, (False, True))
        for launch in _plan(gpu, shape, tokens, scales, triton).launches
    }
    binaries = {(capability, replace(launch, stage="")) for capability, launch in planned}
    return _longest(gate for gate in gates if (gate[0], replace(gate[1], stage="")) in binaries)


def _longest(gates: Iterable[Gate]) -> list[Gate]:
    """Of those that differ in how many steps of K their code has, the one with the most."""
    found: dict[tuple, Gate] = {}
    for capability, launch in sorted(gates, key=lambda gate: _steps(gate[1])):
        found[capability, _without_steps(launch)] = capability, launch
    return list(found.values())


def _steps(launch: Launch) -> int:
    """Of a loop that takes STAGES at once, and the REST behind it; 0 where a loop is no longer for any K."""
    constants = dict(launch.constexprs)
    return constants["STAGES"] + constants["REST"] if "REST" in constants else 0


def _without_steps(launch: Launch) -> Launch:
    if not _steps(launch):
        return launch
    return replace(launch, constexprs=tuple(pair for pair in launch.constexprs if pair[0] not in ("STAGES", "REST")))


def _plan(gpu: Gpu, shape: LayerShape, tokens: int, input_scales: bool, triton: str) -> LayerPlan:
    by = planning_triton(gpu.capability, triton)
    return plan_layer(gpu, shape, tokens, triton=by, input_scales=input_scales)


def _largest(gates: Iterable[Gate], triton: str) -> list[Gate]:
    """Of each family of architectures, kernel and instruction, one with the largest tile.

    Gates that are known to fail in one way are a family of their own, so that an unexpected pass shows.
    """
    family = {capability: members for members in FAMILIES for capability in members}
    found: dict[tuple, Gate] = {}
    for capability, launch in gates:
        known = known_failure(capability, launch, triton)
        place = known or family[capability], launch.kernel, launch.instruction
        if place not in found or length(launch) > length(found[place][1]):
            found[place] = capability, launch
    return list(found.values())


def _shown(launch: Launch) -> set[tuple]:
    """What a launch shows of its kernel.

    With its kind of matrix instruction: each option and type, and its kind of K with its type of scales. With any: its
    tile. And of all kernels of its file, which share their loop: its number of steps, and its tile on banks of its
    order, as they are or prepared.
    """
    constants, scale = dict(launch.constexprs), dict(launch.arguments).get("scale")
    kind, tile = (launch.instruction or "").partition(" ")[0], tile_name(_without_steps(launch))
    options = {pair for pair in launch.constexprs if not is_size(pair[1])}
    of_instruction = {*launch.arguments, *options, (constants.get("K_UNIT"), scale)}
    of_file = {(constants.get("STAGES"), constants.get("REST")), (tile, constants.get("PREPARED"))}
    shown = {(launch.kernel, kind, *pair) for pair in of_instruction} | {(launch.kernel, tile)}
    return shown | {(launch.kernel.partition(".")[0], *pair) for pair in of_file}
