"""What a run takes that is not asked for all gates: no compiler here."""

from dataclasses import replace
from functools import cache
from itertools import product
from math import prod

import pytest

from nvfp4_suite.ci import gates
from nvfp4_suite.ci.gate_choice import chosen
from nvfp4_suite.ci.plans import CARDS, TOKENS
from nvfp4_suite.contract.shapes import CHECKPOINTS
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.releases import NO_ASSEMBLER

releases = pytest.mark.parametrize("triton", [gates.DEFAULT_TRITON, *NO_ASSEMBLER[11, 0]])  # to keep it short
every_architecture = pytest.mark.parametrize("capability", gates.GATED, ids=gates.arch_name)


@cache
def taken(triton: str = gates.DEFAULT_TRITON) -> frozenset:
    return frozenset(chosen(triton))


def of(some, capability) -> list:
    return [launch for listed, launch in some if listed == capability]


@releases
@pytest.mark.parametrize("input_scales", [False, True])
def test_the_plans_that_are_recorded_are_whole(input_scales, triton):
    """golden/plans.json has them of banks without and with input scales."""
    planned = {
        (gpu.capability, launch)
        for gpu, shape, tokens in product(CARDS, CHECKPOINTS.values(), TOKENS)
        if gpu.capability in gates.GATED and triton not in NO_ASSEMBLER.get(gpu.capability, ())
        for launch in plan_layer(gpu, shape, tokens, triton=triton, input_scales=input_scales).launches
    }
    assert without_stage(planned) <= without_stage(taken(triton))


def without_stage(some) -> set:
    return {(capability, replace(launch, stage="")) for capability, launch in some}


@releases
def test_all_that_is_taken_is_listed_in_the_same_order(triton):
    listed = gates.launches(triton)
    assert [gate for gate in listed if gate in taken(triton)] == list(chosen(triton))
    assert len(taken(triton)) < len(listed)


@every_architecture
def test_every_kernel_shows_each_option_type_and_kind_of_k_on_each_architecture(capability):
    """Options are what is no size; K_UNIT is 16 for a ragged K."""
    all_of_it = of(gates.launches(), capability)
    assert values(of(taken(), capability)) == values(all_of_it)
    assert {("gemm.w4a16_gemm", "K_UNIT", unit) for unit in (16, 32)} <= values(all_of_it)


def values(launches) -> set[tuple]:
    every = {(launch.kernel, *pair) for launch in launches for pair in (*launch.arguments, *launch.constexprs)}
    return {value for value in every if not gates.is_size(value[2]) or value[1] == "K_UNIT"}


@every_architecture
def test_every_kernel_shows_its_largest_tile_with_each_kind_of_k_on_each_architecture(capability):
    assert sizes(of(taken(), capability)) == sizes(of(gates.launches(), capability))


def sizes(launches) -> dict[tuple, int]:
    """The largest product of sizes, by kernel and kind of K."""
    found: dict[tuple, int] = {}
    for launch in launches:
        place = launch.kernel, dict(launch.constexprs).get("K_UNIT")
        size = prod(value for _, value in launch.constexprs if gates.is_size(value) and value)
        found[place] = max(found.get(place, 0), size)
    return found


@releases
def test_every_tile_is_compiled_for_some_architecture(triton):
    tiles = [
        {(launch.kernel, gates.tile_name(launch)) for _, launch in some}
        for some in (taken(triton), gates.launches(triton))
    ]
    assert tiles[0] == tiles[1]
