"""Every launch that some card's plan runs, run on this one: the layer around it has the one right answer in bits."""

import pytest

from nvfp4_suite.ci import gates
from nvfp4_suite.kernels import hopper
from nvfp4_suite.kernels.experts import release
from nvfp4_suite.reference import judge

from ..engine import INTERPRETED
from ..linear.layer import order_free
from ..linear.layer import run_plan as run_linear
from ..moe.subject import context_of, expected_of, run_plan
from .hosts import can_run, has_host, is_linear, launches, layer_host, linear_host, name_of, needs_sm_90

# The interpreter runs every kernel elsewhere: here, one launch of each kind of host.
KINDS = ("gemm.w4a16_gemm", "w4a4.w4a4_down", "linear.linear_gemm")


BLOCKED = ("list_blocks", "gate_up", "down")


def _run_here() -> list:
    first = {launch.kernel: (name, launch) for name, launch in reversed(launches().items())}
    found = [first[kernel] for kernel in KINDS] if INTERPRETED else launches().items()
    gluon = release() in hopper.TRITONS
    able = [(name, one) for name, one in found if can_run(one) and (gluon or not needs_sm_90(one))]
    return [pytest.param(launch, id=name) for name, launch in able]


@pytest.mark.parametrize("launch", _run_here())
def test_a_launch_gives_the_one_right_answer(launch, device):
    if is_linear(launch):
        sizes, plan = linear_host(launch)
        layer = order_free(*sizes)
        expected = layer.outputs(layer.x.double() @ layer.weights().T)
        judge.bitwise(run_linear(plan, layer, device), expected, launch=launch.label)
    else:
        case, plan = layer_host(launch)
        expected = expected_of(case, case.format)
        judge.bitwise(run_plan(plan, case, device), expected, **context_of(case), launch=launch.label)


def test_an_h200_can_run_them_all():
    assert all(can_run(launch) for launch in launches().values())


def test_every_gated_launch_has_a_host():
    named = {name_of(launch) for _, launch in gates.launches() if has_host(launch)}
    for launch in launches().values():
        _, plan = linear_host(launch) if is_linear(launch) else layer_host(launch)
        named -= {name_of(launch) for launch in plan.launches}
    assert not named


def test_hosts_route_in_the_launches_blocks():
    """Those of W4A4 by their number of tokens, the others as they are told to."""
    for launch in launches().values():
        if launch.stage in ("gate_up", "down") and "BLOCK_M" in dict(launch.constexprs):
            _, plan = layer_host(launch)
            assert {one.constexpr("BLOCK_M") for one in map(plan.launch, BLOCKED)} == {launch.constexpr("BLOCK_M")}


def test_hosts_read_the_launches_banks():
    """Both GEMMs do: a plan that mixes banks is refused, and the engine of this session may run none of them."""
    for launch in launches().values():
        if launch.stage in ("gate_up", "down"):
            _, plan = layer_host(launch)
            of_gemms = {hopper.wants_prepared(plan.launch(stage)) for stage in ("gate_up", "down")}
            assert of_gemms == {hopper.wants_prepared(launch)}, launch.label


def test_hosts_have_k_that_launches_are_compiled_for():
    for launch in launches().values():
        constants = dict(launch.constexprs)
        if "K_UNIT" not in constants:
            continue
        if is_linear(launch):
            (_, _, k, _), _ = linear_host(launch)
        else:
            case, _ = layer_host(launch)
            k = case.shape.hidden if launch.stage == "gate_up" else case.shape.intermediate
        assert k % constants["K_UNIT"] == 0, launch.label
        if constants.get("EVEN_K"):
            assert k // 2 % constants["BLOCK_KB"] == 0, launch.label
