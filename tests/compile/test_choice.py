"""What a run takes that is not asked for all gates: no compiler here."""

from dataclasses import replace
from functools import cache
from itertools import product
from math import prod

import pytest

from nvfp4_suite.ci import gates
from nvfp4_suite.ci.gate_choice import chosen
from nvfp4_suite.ci.plans import CARDS, TOKENS
from nvfp4_suite.contract.gpus import ARCHITECTURES
from nvfp4_suite.contract.shapes import CHECKPOINTS
from nvfp4_suite.kernels.launch import Launch
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
    """Also without their numbers of steps: see below."""
    return {(capability, replace(without_steps(launch), stage="")) for capability, launch in some}


def without_steps(launch: Launch) -> Launch:
    """Of a loop over K that is unrolled: STAGES at once, and REST behind them."""
    if "REST" not in dict(launch.constexprs):
        return launch
    return replace(launch, constexprs=tuple(pair for pair in launch.constexprs if pair[0] not in ("STAGES", "REST")))


def steps(launch: Launch) -> int:
    constants = dict(launch.constexprs)
    return constants["STAGES"] + constants["REST"]


def test_of_launches_that_differ_in_their_steps_the_longest_is_taken():
    longest: dict[Launch, int] = {}
    listed, some = (
        [one for one in of(found, (9, 0)) if "REST" in dict(one.constexprs)] for found in (gates.launches(), taken())
    )
    for launch in listed:
        longest[without_steps(launch)] = max(longest.get(without_steps(launch), 0), steps(launch))
    assert {steps(launch) for launch in listed} == {6, 8, 10}
    large = [launch for launch in some if launch.constexpr("BLOCK_M") == 256]
    assert large and all(steps(launch) == longest[without_steps(launch)] for launch in large)


@releases
def test_all_that_is_taken_is_listed_in_the_same_order(triton):
    listed = gates.launches(triton)
    assert [gate for gate in listed if gate in taken(triton)] == list(chosen(triton))
    assert len(taken(triton)) < len(listed)


@every_architecture
def test_each_architecture_shows_the_largest_tiles_of_every_kernel(
    capability,
):
    """With each instruction, kind of K (K_UNIT is 16 for a ragged one) and type of scales (bytes for emulated e4m3)."""
    all_of_it = sizes(of(gates.launches(), capability))
    assert sizes(of(taken(), capability)) == all_of_it
    scales = {"*u8", "*fp8e4nv"} if ARCHITECTURES[capability].native_e4m3 else {"*u8"}
    assert {place[2:] for place in all_of_it if place[0] == "gemv.w4a16_gemv"} == set(product((16, 32), scales))


def sizes(launches) -> dict[tuple, int]:
    """The largest product of sizes, by kernel, instruction, kind of K and type of scales."""
    found: dict[tuple, int] = {}
    for launch in launches:
        kinds = dict(launch.constexprs).get("K_UNIT"), dict(launch.arguments).get("scale")
        place = launch.kernel, launch.instruction, *kinds
        size = prod(value for _, value in launch.constexprs if gates.is_size(value) and value)
        found[place] = max(found.get(place, 0), size)
    return found


@releases
@pytest.mark.parametrize("kind", ["mma.sync", "wgmma", "tcgen05", None])
def test_every_kernel_shows_each_option_and_type_with_each_instruction(kind, triton):
    """Options are what is no size."""
    values = [
        {
            (launch.kernel, *pair)
            for _, launch in some
            if (launch.instruction and launch.instruction.split(" ")[0]) == kind
            for pair in (*launch.arguments, *launch.constexprs)
            if not gates.is_size(pair[1])
        }
        for some in (taken(triton), gates.launches(triton))
    ]
    assert values[0] == values[1] and values[0]


@releases
def test_every_tile_is_compiled_for_some_architecture(triton):
    tiles = [
        {(launch.kernel, gates.tile_name(without_steps(launch))) for _, launch in some}
        for some in (taken(triton), gates.launches(triton))
    ]
    assert tiles[0] == tiles[1]
