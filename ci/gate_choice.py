"""Which of all gates a run compiles that is not asked for all of them. Pure: needs neither torch nor triton."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

from ..contract.gpus import Gpu
from ..contract.shapes import CHECKPOINTS, LayerShape
from ..kernels.launch import Launch
from ..kernels.plan import LayerPlan, plan_layer
from .gate_facts import Capability
from .gate_work import Gate, length
from .gates import DEFAULT_TRITON, is_size, launches, planning_triton, tile_name
from .plans import CARDS, TOKENS


def chosen(triton: str = DEFAULT_TRITON) -> tuple[Gate, ...]:
    """The part of `launches` that a run compiles unless it is asked for all, in the same order.

    Whole are the plans of golden/plans.json: what "auto" chooses in bf16 without weight_on_input, with and without
    input scales. Of the rest each architecture gets, of every kernel, the largest tile with each kind of K, which is
    the first to spill, and what shows a value of an option, a dtype or a type of scales that nothing else shows there;
    every other tile is compiled for one architecture at least.
    """
    gates = launches(triton)
    taken = {*_planned(gates, triton), *_largest(gates)}
    shown = {each for gate in taken for each in _shown(*gate)}
    for gate in sorted(gates, key=lambda gate: length(gate[1])):
        if not _shown(*gate) <= shown:
            taken.add(gate)
            shown |= _shown(*gate)
    return tuple(gate for gate in gates if gate in taken)


def _planned(gates: Iterable[Gate], triton: str) -> list[Gate]:
    """Those of golden/plans.json, whatever stage they are in there."""
    planned = {
        (gpu.capability, launch)
        for gpu, shape, tokens, scales in product(CARDS, CHECKPOINTS.values(), TOKENS, (False, True))
        for launch in _plan(gpu, shape, tokens, scales, triton).launches
    }
    binaries = {(capability, replace(launch, stage="")) for capability, launch in planned}
    return [gate for gate in gates if (gate[0], replace(gate[1], stage="")) in binaries]


def _plan(gpu: Gpu, shape: LayerShape, tokens: int, input_scales: bool, triton: str) -> LayerPlan:
    by = planning_triton(gpu.capability, triton)
    return plan_layer(gpu, shape, tokens, triton=by, input_scales=input_scales)


def _largest(gates: Iterable[Gate]) -> list[Gate]:
    """Of each architecture, kernel and kind of K, one with the largest tile."""
    found: dict[tuple, Gate] = {}
    for gate in gates:
        place = (gate[0], gate[1].kernel, *_kind_of_k(gate[1]))
        found[place] = max(found.get(place, gate), gate, key=lambda each: length(each[1]))
    return list(found.values())


def _shown(capability: Capability, launch: Launch) -> set[tuple]:
    """What a launch shows of its kernel: of its tile anywhere, of all else on `capability`."""
    options = {pair for pair in launch.constexprs if not is_size(pair[1])}
    here = {(capability, launch.kernel, *each) for each in {*launch.arguments, *options, *_kind_of_k(launch)}}
    return here | {(launch.kernel, tile_name(launch))}


def _kind_of_k(launch: Launch) -> tuple[tuple[str, object], ...]:
    """What K is a multiple of, where the kernel has one."""
    return tuple((name, value) for name, value in launch.constexprs if name == "K_UNIT")
