"""Which of all gates a run compiles that is not asked for all of them. Pure: needs neither torch nor triton."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

from ..contract.gpus import Gpu
from ..contract.shapes import CHECKPOINTS, LayerShape
from ..kernels.launch import Launch
from ..kernels.plan import LayerPlan, plan_layer
from .gate_outcome import Gate
from .gate_work import length
from .gates import DEFAULT_TRITON, is_size, launches, planning_triton, tile_name
from .plans import CARDS, TOKENS


def chosen(triton: str = DEFAULT_TRITON) -> tuple[Gate, ...]:
    """The part of `launches` that a run compiles unless it is asked for all, in the same order.

    Whole are the plans of golden/plans.json: what "auto" chooses in bf16 without weight_on_input, with and without
    input scales; but of launches that differ alone in how many steps of K their code has, only the longest. Of
    the rest each architecture gets the largest tile of every kernel, the first to spill, with each instruction, kind of
    K, type of scales and order of banks. Each option and dtype of a kernel is compiled with each kind of matrix
    instruction that it comes to, and each tile is compiled, of whatever length, for one architecture at least.
    """
    gates = launches(triton)
    taken = {*_planned(gates, triton), *_largest(gates)}
    shown = {each for _, launch in taken for each in _shown(launch)}
    for gate in sorted(gates, key=lambda gate: length(gate[1])):
        if not _shown(gate[1]) <= shown:
            taken.add(gate)
            shown |= _shown(gate[1])
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


def _largest(gates: Iterable[Gate]) -> list[Gate]:
    """Of each architecture, kernel and instruction, one with the largest tile, by kind of K, of scales and of banks."""
    found: dict[tuple, Gate] = {}
    for capability, launch in gates:
        constants = dict(launch.constexprs)
        kinds = constants.get("K_UNIT"), dict(launch.arguments).get("scale"), constants.get("PREPARED")
        place = (capability, launch.kernel, launch.instruction, *kinds)
        if place not in found or length(launch) > length(found[place][1]):
            found[place] = capability, launch
    return list(found.values())


def _shown(launch: Launch) -> set[tuple]:
    """What a launch shows of its kernel: its options and types with its matrix instruction, and its tile."""
    kind = (launch.instruction or "").partition(" ")[0]
    options = {pair for pair in launch.constexprs if not is_size(pair[1])}
    shown = {(launch.kernel, kind, *pair) for pair in {*launch.arguments, *options}}
    return shown | {(launch.kernel, tile_name(_without_steps(launch)))}
