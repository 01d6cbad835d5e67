"""What a run takes that is not asked for all gates: no compiler here."""

from dataclasses import replace
from functools import cache
from itertools import product
from math import prod

import pytest

from nvfp4_suite.ci import gate_choice, gates
from nvfp4_suite.ci.gate_choice import chosen
from nvfp4_suite.ci.gate_compile import FAMILIES
from nvfp4_suite.ci.gate_known import KNOWN, known_failure
from nvfp4_suite.ci.plans import CARDS, TOKENS
from nvfp4_suite.contract.shapes import CHECKPOINTS
from nvfp4_suite.kernels import hopper
from nvfp4_suite.kernels.launch import Launch
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.releases import NO_ASSEMBLER

releases = pytest.mark.parametrize("triton", [gates.DEFAULT_TRITON, *NO_ASSEMBLER[11, 0]])  # to keep it short


@cache
def taken(triton: str = gates.DEFAULT_TRITON) -> frozenset:
    return frozenset(chosen(triton))


def of(some, family) -> list:
    return [launch for capability, launch in some if capability in family]


@cache
def planned(triton: str = gates.DEFAULT_TRITON, input_scales: bool = False) -> frozenset:
    """The gates of golden/plans.json, which has banks without and with input scales; stages do not count."""
    return without_stage(
        (gpu.capability, launch)
        for gpu, shape, tokens in product(CARDS, CHECKPOINTS.values(), TOKENS)
        if gpu.capability in gates.GATED and triton not in NO_ASSEMBLER.get(gpu.capability, ())
        for launch in plan_layer(gpu, shape, tokens, triton=triton, input_scales=input_scales).launches
    )


@releases
@pytest.mark.parametrize("input_scales", [False, True])
def test_the_plans_that_are_recorded_are_whole(input_scales, triton):
    """But for their numbers of steps: see below."""
    some = planned(triton, input_scales)
    assert {binary(gate) for gate in some} <= {binary(gate) for gate in without_stage(taken(triton))}


def without_stage(some) -> frozenset:
    return frozenset((capability, replace(launch, stage="")) for capability, launch in some)


def binary(gate) -> tuple:
    return gate[0], without_steps(gate[1])


def without_steps(launch: Launch) -> Launch:
    """Of a loop over K that is unrolled: STAGES at once, and REST behind them."""
    if "REST" not in dict(launch.constexprs):
        return launch
    return replace(launch, constexprs=tuple(pair for pair in launch.constexprs if pair[0] not in ("STAGES", "REST")))


def steps(launch: Launch) -> int:
    constants = dict(launch.constexprs)
    return constants["STAGES"] + constants["REST"] if "REST" in constants else 0


def test_of_plans_that_differ_in_their_steps_the_longest_is_taken():
    longest: dict[tuple, int] = {}
    for gate in planned():
        longest[binary(gate)] = max(longest.get(binary(gate), 0), steps(gate[1]))
    assert len(longest) < len(planned())
    assert {gate for gate in planned() if steps(gate[1]) == longest[binary(gate)]} <= without_stage(taken())


@releases
def test_all_that_is_taken_is_listed_in_the_same_order(triton):
    listed = gates.launches(triton)
    assert [gate for gate in listed if gate in taken(triton)] == list(chosen(triton))
    assert len(taken(triton)) < len(listed)


@releases
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: "-".join(map(gates.arch_name, family)))
def test_each_family_of_architectures_shows_the_largest_tile_of_every_kernel_with_each_instruction(family, triton):
    assert sizes(of(taken(triton), family)) == sizes(of(gates.launches(triton), family))


@pytest.mark.parametrize("triton", sorted({triton for known in KNOWN for triton in known.tritons}))
def test_a_run_asks_for_each_known_failure_of_each_kernel(triton):
    """So that one that passes is seen."""
    found = [
        {(known, launch.kernel) for at, launch in some if (known := known_failure(at, launch, triton))}
        for some in (taken(triton), gates.launches(triton))
    ]
    assert found[0] == found[1]


def sizes(launches) -> dict[tuple, int]:
    """The largest product of sizes, by kernel and instruction."""
    found: dict[tuple, int] = {}
    for launch in launches:
        place = launch.kernel, launch.instruction
        size = prod(value for _, value in launch.constexprs if gates.is_size(value) and value)
        found[place] = max(found.get(place, 0), size)
    return found


@releases
@pytest.mark.parametrize("kind", ["mma.sync", "wgmma", "tcgen05", None])
def test_every_kernel_shows_each_option_and_type_with_each_instruction(kind, triton):
    """Options are what is no size. Also each kind of K (K_UNIT is 16 for a ragged one) with each type of scales."""
    values = [
        {
            (launch.kernel, *pair)
            for _, launch in some
            if (launch.instruction and launch.instruction.split(" ")[0]) == kind
            for constants, types in [(dict(launch.constexprs), dict(launch.arguments))]
            for pair in (*types.items(), *constants.items(), (constants.get("K_UNIT"), types.get("scale")))
            if not gates.is_size(pair[1])
        }
        for some in (taken(triton), gates.launches(triton))
    ]
    assert values[0] == values[1] and values[0]


def named(kernel: str) -> list[Launch]:
    return [launch for _, launch in taken() if launch.kernel == kernel]


@releases
def test_every_tile_is_compiled_for_some_architecture(triton):
    tiles = [
        {(launch.kernel, gates.tile_name(without_steps(launch))) for _, launch in some}
        for some in (taken(triton), gates.launches(triton))
    ]
    assert tiles[0] == tiles[1]


def test_both_orders_of_banks_are_read_by_each_tile_and_by_each_gemm():
    """Of the GEMMs for sm_90, whose loop is one: gate_up or down for each tile, and both of them in some tile."""
    gemms = [*named(hopper.GATE_UP), *named(hopper.DOWN)]
    for name in ("kernel", "BLOCK_M"):
        places = {dict(launch.constexprs).get(name, launch.kernel) for launch in gemms}
        found = {(dict(each.constexprs).get(name, each.kernel), each.constexpr("PREPARED")) for each in gemms}
        assert len(places) == 2 and found == set(product(places, (False, True)))


@releases
def test_no_difference_between_launches_of_a_kernel_is_left_out(triton):
    """Whatever a launch declares: also what is added to a kernel when nobody thinks of this choice."""
    assert differences(gates.launches(triton)) == differences(taken(triton))


def differences(some) -> set[tuple]:
    """(kernel, what, its value) of everything that makes binaries of a kernel differ; steps are of a file's kernels."""
    found = set()
    for _, launch in some:
        constants = dict(launch.constexprs)
        steps = ("STAGES", "REST"), (constants.pop("STAGES", 0), constants.pop("REST", 0))
        fields = ("divisible", "num_warps", "num_stages", "fp_fusion", "instruction")
        told = (*launch.arguments, *constants.items(), *((name, getattr(launch, name)) for name in fields))
        found |= {(launch.kernel, *one) for one in told} | {(launch.kernel.partition(".")[0], *steps)}
    return found


PLANTED = (  # an option, a size, steps, a kind of K, a type, warps, stages
    {"constexprs": (("NEW", True),)},
    {"constexprs": (("NEW", 8),)},
    {"constexprs": (("STAGES", 6), ("REST", 3))},
    {"constexprs": (("K_UNIT", 8),)},
    {"arguments": (("x", "*fp8e5"),)},
    {"num_warps": 2},
    {"num_stages": 7},
)


@pytest.mark.parametrize("kernel", [hopper.DOWN, "gemm.w4a16_gemm"])
def test_a_launch_that_alone_has_a_value_is_taken(kernel, monkeypatch):
    """Also the smallest, which nothing else speaks for."""
    capability, launch = next(gate for gate in gates.launches() if gate[1].kernel == kernel)
    new = [
        (capability, replace(launch, **{name: with_pairs(getattr(launch, name), value) for name, value in one.items()}))
        for one in PLANTED
    ]
    monkeypatch.setattr(gate_choice, "launches", lambda triton: (*gates.launches(triton), *new))
    assert all(differences([gate]) - differences(gates.launches()) for gate in new)
    assert set(new) <= set(gate_choice.chosen())


def with_pairs(before, value):
    """`before` with other pairs of these names, where it is made of pairs."""
    return tuple((dict(before) | dict(value)).items()) if isinstance(value, tuple) else value
