"""What is right for a layer and for each of its stages: the kernels' own outputs pass, and every fault is seen."""

import pytest
import torch

from nvfp4_suite.bench import roofline, truth
from nvfp4_suite.bench.contenders import Grouped
from nvfp4_suite.bench.inputs import draw
from nvfp4_suite.bench.points import layer_of
from nvfp4_suite.bench.stages import STAGES, Given, stage_of
from nvfp4_suite.bench.subjects import choose, parse
from nvfp4_suite.bench.truth import Truth
from nvfp4_suite.contract.gpus import PORTABLE, Gpu
from nvfp4_suite.kernels import experts, hopper

LAYER = layer_of("3x2x64x32/gelu_tanh")
TOKENS = 4
GEMMS = ("gate_up", "down")


@pytest.fixture(scope="module")
def given():
    return Given(draw(LAYER, TOKENS, "cpu"))


@pytest.fixture(scope="module")
def answers(given):
    return Truth(given, TOKENS)


def output(given, name, kernel="prefill"):
    chosen = choose(parse(kernel), PORTABLE, LAYER, TOKENS, "3.8.0")
    banks = given.banks.without_input_scales()
    return chosen.kernel, stage_of(chosen, name).build(chosen, banks, given)()


@pytest.fixture(scope="module")
def outputs(given):
    """What each stage of the prefill kernel gives, by name: (kernel, output)."""
    return {name: output(given, name) for name in roofline.STAGES if name != "layer"}


@pytest.mark.parametrize("name", [name for name in roofline.STAGES if name != "layer"])
def test_a_stage_of_a_right_kernel_passes(name, outputs, answers):
    kernel, out = outputs[name]
    error = answers.check(out, STAGES[name].gives, kernel, name)
    assert error is None if name == "align" else 0 <= error < 2**-8


@pytest.mark.parametrize("name", GEMMS)
def test_a_decode_kernels_gemv_passes(name, given, answers):
    kernel, out = output(given, name, "decode")
    assert answers.check(out, name, kernel, name) < 2**-8


@pytest.fixture(scope="module")
def fused(given, outputs):
    """A kernel, and what its gate_up gives that applies the activation as well."""
    kernel, gate_up = outputs["gate_up"]
    chosen = choose(parse("prefill"), PORTABLE, LAYER, TOKENS, "3.8.0")
    later = Given(given.inputs)
    later.gate_up = gate_up
    return kernel, stage_of(chosen, "activation").build(chosen, given.banks, later)()


def test_a_gate_up_that_applies_the_activation_passes(fused, answers):
    kernel, out = fused
    assert answers.check(out, "gate_up_activated", kernel, "fused") < 2**-8
    for fault in FAULTS.values():
        with pytest.raises(AssertionError):
            answers.check(fault(out), "gate_up_activated", kernel, "fused")


def test_interleaved_columns_are_judged_in_their_own_order():
    """Of the sm_90 kernel's gate_up, which cannot run here; what it gives is made of another's output."""
    layer, gives = layer_of("2x1x64x128/silu"), STAGES[hopper.GATE_UP].gives
    chosen, given = choose(parse("prefill"), PORTABLE, layer, TOKENS, "3.8.0"), Given(draw(layer, TOKENS, "cpu"))
    given.gate_up = stage_of(chosen, "gate_up").build(chosen, given.banks, given)()
    natural = stage_of(chosen, "activation").build(chosen, given.banks, given)()
    interleaved = natural[:, [hopper.k_of_position(position) for position in range(128)]]
    assert Truth(given, TOKENS).check(interleaved, gives, chosen.kernel, "interleaved") < 2**-8
    with pytest.raises(AssertionError):
        Truth(given, TOKENS).check(natural, gives, chosen.kernel, "natural")


FAULTS = {
    "off by 1 %": lambda out: out * 1.015625,
    "a row of another route": lambda out: out.roll(1, 0),
    "NaN in one place": lambda out: out.index_put((torch.tensor(0), torch.tensor(3)), torch.tensor(torch.nan).to(out)),
    "half of the columns swapped": lambda out: out.roll(out.shape[1] // 2, 1),
    "zeros at the end": lambda out: torch.cat([out[:-1], torch.zeros_like(out[-1:])]),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["gate_up", "activation", "down", "sum"])
def test_a_fault_of_a_stage_is_seen(name, fault, outputs, answers):
    kernel, out = outputs[name]
    with pytest.raises(AssertionError):
        answers.check(FAULTS[fault](out), name, kernel, name)


def test_one_bit_of_a_sum_is_seen(outputs, answers):
    """The order of its additions is promised, so that one answer is right."""
    kernel, out = outputs["sum"]
    off = out.clone()
    off.view(torch.int16)[1, 5] += 1
    with pytest.raises(AssertionError, match="1 of"):
        answers.check(off, "sum", kernel, "sum")


def test_a_value_that_is_not_finite_counts_outside_the_sample(given, outputs):
    kernel, out = outputs["gate_up"]
    few = Truth(given, 1)
    assert few.routes.tolist() == [2 * TOKENS - 2, 2 * TOKENS - 1]
    few.check(out, "gate_up", kernel, "gate_up")
    off = out.clone()
    off[0, 0] = torch.inf
    with pytest.raises(AssertionError, match=f"1 of {out.numel()} elements are not finite, or were never written"):
        few.check(off, "gate_up", kernel, "gate_up")


def test_blocks_that_lose_or_swap_a_route_are_seen(given, outputs):
    _, (routes, experts) = outputs["align"]
    truth.check_blocks(routes, experts, given.topk_ids)
    first = routes.flatten().tolist().index(0)
    lost = routes.flatten().index_fill(0, torch.tensor([first]), routes.max()).view_as(routes)
    with pytest.raises(AssertionError, match="but should hold each of 8 once"):
        truth.check_blocks(lost, experts, given.topk_ids)
    twice = torch.where(routes == 0, 1, routes)
    with pytest.raises(AssertionError, match="each of 8 once"):
        truth.check_blocks(twice, experts, given.topk_ids)
    swapped = torch.where(experts == 0, 1, torch.where(experts == 1, 0, experts))
    with pytest.raises(AssertionError, match="are in a block of another expert"):
        truth.check_blocks(routes, swapped, given.topk_ids)


@pytest.mark.parametrize("stage", ["gate_up", "down", "layer"])
def test_unquantized_gemms_are_judged_too(stage, given, answers):
    contender = Grouped(given.banks, [stage]).contender(stage, given, answers, given.experts_hit())
    outs = contender.function()
    assert len(outs) == (2 if stage == "layer" else 1)
    assert contender.check(outs) < 2**-8
    with pytest.raises(AssertionError):
        contender.check((*outs[:-1], outs[-1].roll(1, 0)))


def test_a_layer_with_a_tile_runs_the_plan_that_has_it(given, monkeypatch):
    chosen = choose(parse("prefill@m32"), PORTABLE, LAYER, TOKENS, "3.8.0")
    ran = []
    monkeypatch.setattr(experts, "run", lambda plan, *tensors, **options: ran.append((plan, len(tensors), options)))
    stage_of(chosen, "layer").build(chosen, given.banks.without_input_scales(), given)()
    assert ran == [(chosen.plan, 4, {})] and chosen.plan.launch("down").constexpr("BLOCK_M") == 32


@pytest.mark.parametrize(
    ("kernel", "stage", "message"),
    [
        ("prefill", "softmax", "--stage is 'softmax', but should be one of layer, align"),
        ("decode", "align", "but decode_w4a16 has no such stage"),
        ("w4a4", "gate_up", "but prefill_w4a4 has no such stage that is timed alone"),
    ],
)
def test_a_stage_that_is_none(kernel, stage, message):
    chosen = choose(parse(kernel), PORTABLE, LAYER, TOKENS, "3.8.0")
    with pytest.raises(ValueError, match=message):
        stage_of(chosen, stage)


def test_a_kernel_may_have_a_stage_of_its_own(monkeypatch):
    chosen = choose(parse("w4a4"), PORTABLE, LAYER, TOKENS, "3.8.0")
    monkeypatch.setitem(STAGES, "prefill_w4a4/gate_up", own := STAGES["down"])
    assert stage_of(chosen, "gate_up") is own


@pytest.mark.parametrize(("shape", "own"), [("4x2x2048x512/silu", True), ("4x2x2048x528/silu", False)])
@pytest.mark.parametrize(("stage", "entry"), [("gate_up", hopper.GATE_UP), ("down", hopper.DOWN)])
def test_a_stage_is_that_of_what_the_plan_launches(shape, own, stage, entry):
    """By one name, the kernel for sm_90 where a layer's sizes allow it, and the default kernel's launches elsewhere."""
    chosen = choose(parse(hopper.NAME), Gpu("NVIDIA H200", (9, 0)), layer_of(shape), TOKENS, "3.8.0")
    assert stage_of(chosen, stage) is STAGES[entry if own else stage]
