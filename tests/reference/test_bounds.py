"""The enclosure holds whatever a tensor core may give, for every activation and special value, and it is narrow."""

import math

import pytest
import torch

from nvfp4_suite.contract.banks import ExpertBanks
from nvfp4_suite.contract.case import Case, random_inputs, torch_dtype
from nvfp4_suite.contract.kernel import ACTIVATIONS, DTYPES
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.reference import bounds, moe
from nvfp4_suite.reference.activations import Activation
from nvfp4_suite.reference.rounding import FORMS, rounding_form

from .simulated import exponent, orders, sloppy_f, tensor_core_sums

INF, NAN = math.inf, math.nan
SMALL = LayerShape(4, 2, 64, 32)


def layer(tokens=5, shape=SMALL, routing="random", **options):
    case = Case(shape, tokens, routing, "random", **options)
    return case, random_inputs(case)


def arguments(inputs):
    return inputs.hidden_states, inputs.banks, inputs.topk_weights, inputs.topk_ids


def assert_inside(result: torch.Tensor, interval: bounds.Interval):
    outside = ~((interval.lower <= result) & (result <= interval.upper))
    assert not outside.any(), f"{outside.sum()} of {outside.numel()} outside, first at {outside.nonzero()[0].tolist()}"


FORMATS = {"w4a16": ("w4a16", "w4a16_atomic"), "w4a4": ("w4a4", "w4a4_atomic")}


@pytest.mark.parametrize(("order", "step"), [("forward", 16), ("even_then_odd", 8), ("shuffled", 8)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("format", FORMATS)
def test_a_tensor_core_kernel_stays_inside(monkeypatch, format, activation, dtype, order, step):
    options = {"activation": activation, "dtype": dtype, "format": format}
    case, inputs = layer(tokens=3, shape=LayerShape(2, 2, 48, 32), **options)
    interval = bounds.enclose(*arguments(inputs), rounding=format, **case.options)
    smallest = exponent(torch.tensor(torch.finfo(torch_dtype(dtype)).tiny)).item()

    def sums(x, weight):
        return tensor_core_sums(x, weight, orders(x.shape[1])[order], step, smallest)

    monkeypatch.setattr(moe, "_sums", sums)
    monkeypatch.setattr(Activation, "f", sloppy_f)
    assert_inside(moe.expert_layer(*arguments(inputs), **case.options, rounding=format), interval)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("format", FORMATS)
def test_a_tensor_core_kernel_with_a_long_k_stays_inside(monkeypatch, format, dtype):
    case, inputs = layer(tokens=1, shape=LayerShape(2, 2, 1024, 32), dtype=dtype, format=format)
    interval = bounds.enclose(*arguments(inputs), **case.options, rounding=format)
    monkeypatch.setattr(moe, "_sums", lambda x, w: tensor_core_sums(x, w, torch.arange(x.shape[1]), 8, -126))
    assert_inside(moe.expert_layer(*arguments(inputs), **case.options, rounding=format), interval)


# ---- the layer


@pytest.mark.parametrize("routing", ["random", "hot", "twice", "dropped"])
@pytest.mark.parametrize("weight_on_input", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("rounding", FORMS)
def test_the_expected_output_lies_in_its_enclosure(rounding, activation, dtype, weight_on_input, routing):
    options = {"activation": activation, "dtype": dtype, "weight_on_input": weight_on_input}
    case, inputs = layer(routing=routing, format=FORMS[rounding].format, **options)
    interval = bounds.enclose(*arguments(inputs), **case.options, rounding=rounding)
    assert torch.equal(interval.expected, moe.expert_layer(*arguments(inputs), **case.options, rounding=rounding))
    assert interval.dtype == torch_dtype(dtype)
    assert_inside(interval.expected, interval)
    for end in (interval.lower, interval.upper):
        assert torch.equal(end.to(interval.dtype).double(), end)


@pytest.mark.parametrize(("dtype", "hidden"), [("bf16", 64), ("bf16", 272), ("fp16", 64), ("fp16", 272)])
def test_with_a_short_k_an_error_of_one_percent_shows_in_most_elements(dtype, hidden):
    case, inputs = layer(tokens=8, shape=LayerShape(4, 2, hidden, 32), dtype=dtype)
    interval = bounds.enclose(*arguments(inputs), **case.options)
    width = interval.upper - interval.lower
    assert width.median() < 0.01 * interval.expected.square().mean().sqrt()


def test_with_a_short_k_and_bf16_most_elements_have_one_right_value():
    case, inputs = layer(tokens=8)
    interval = bounds.enclose(*arguments(inputs), **case.options)
    assert (interval.lower == interval.upper).double().mean() > 0.5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [2048, 6144])
def test_with_a_long_k_an_enclosure_is_a_few_percent_of_the_output(dtype, hidden):
    case, inputs = layer(tokens=4, shape=LayerShape(2, 2, hidden, 512), dtype=dtype)
    interval = bounds.enclose(*arguments(inputs), **case.options)
    width = (interval.upper - interval.lower) / 2
    assert width.median() < {"bf16": 0.03, "fp16": 0.015}[dtype] * interval.expected.square().mean().sqrt()


def test_an_enclosure_is_the_part_that_the_worst_and_the_likely_share():
    """With few uncertain terms the worst is narrower, as a spread counts six standard deviations."""
    case, inputs = layer(tokens=8, shape=LayerShape(4, 2, 256, 48))
    interval = bounds.enclose(*arguments(inputs), **case.options)
    form = rounding_form("w4a16", torch.bfloat16)
    weights = moe.Weights.of_banks(inputs.banks, form)
    rest = inputs.hidden_states, weights, inputs.topk_weights, inputs.topk_ids, Activation("silu"), False, form
    _, worst, likely = bounds._enclosed_layer(*rest)
    assert (worst.lower > likely.lower).any() and (worst.lower < likely.lower).any()
    assert torch.equal(interval.lower, torch.maximum(worst.lower, likely.lower))
    assert torch.equal(interval.upper, torch.minimum(worst.upper, likely.upper))


@pytest.mark.parametrize("format", FORMATS)
def test_an_interval_holds_what_each_route_contributes(format):
    case, inputs = layer(routing="dropped", format=format)
    interval = bounds.enclose(*arguments(inputs), **case.options, rounding=format)
    assert torch.equal(moe.combine(interval.routes, rounding_form(format, torch.bfloat16)), interval.expected)
    dropped = (inputs.topk_ids < 0) | (inputs.topk_ids >= SMALL.experts)
    assert not interval.routes[dropped].any() and interval.routes[~dropped].any(dim=-1).all()
    assert torch.equal(interval.topk_ids, inputs.topk_ids)


@pytest.mark.parametrize("format", FORMATS)
def test_a_nan_is_required_in_its_row_alone(format):
    case, inputs = layer(format=format)
    inputs.hidden_states[2, 5] = NAN
    interval = bounds.enclose(*arguments(inputs), **case.options, rounding=format)
    assert interval.lower[2].isnan().all() and interval.upper[2].isnan().all()
    assert interval.lower[[0, 1, 3, 4]].isfinite().all()


def test_a_token_without_an_expert_is_exactly_zero():
    case, inputs = layer()
    inputs.topk_ids[1] = torch.tensor([-1, 4])
    interval = bounds.enclose(*arguments(inputs), **case.options)
    assert not interval.lower[1].any() and not interval.upper[1].any()


def one_expert(gate_global: float, up_global: float, down_global: float, hidden: int = 16) -> ExpertBanks:
    """I = 16 and every weight 1: each sum is the sum of its inputs."""
    gate_up = torch.full((1, 32, hidden // 2), 0x22, dtype=torch.uint8), ones((1, 32, hidden // 16))
    down = torch.full((1, hidden, 8), 0x22, dtype=torch.uint8), ones((1, hidden, 1))
    gate_up_global = torch.tensor([[gate_global] * 16 + [up_global] * 16])
    return ExpertBanks(*gate_up, gate_up_global, *down, torch.full((1, hidden), down_global))


def ones(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.full(shape, 0x38, dtype=torch.uint8).view(torch.float8_e4m3fn)


def enclosed_with_ones(banks: ExpertBanks) -> bounds.Interval:
    x = torch.ones(1, banks.hidden, dtype=torch.float16)
    return bounds.enclose(x, banks, torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int32))


def ends_of(interval: bounds.Interval) -> tuple[float, float]:
    return interval.lower[0, 0].item(), interval.upper[0, 0].item()


def test_an_fp16_overflow_is_required_where_it_is_certain():
    """Every gate and up is 16, so that a sum of the down projection is 16^3."""
    assert ends_of(enclosed_with_ones(one_expert(1.0, 1.0, down_global=64.0))) == (INF, INF)


def test_an_fp16_overflow_is_allowed_where_the_upper_end_overflows():
    """65520 is the midpoint behind fp16's largest number: the last bits of the sums decide."""
    assert ends_of(enclosed_with_ones(one_expert(1.0, 1.0, down_global=65520 / 16**3))) == (65504.0, INF)
    assert ends_of(enclosed_with_ones(one_expert(1.0, 1.0, down_global=65000 / 16**3)))[1] < INF


def test_behind_an_uncertain_overflow_anything_is_right():
    """gate is 65504 or inf, and up so small that gate * up may stay finite."""
    assert ends_of(enclosed_with_ones(one_expert(65520 / 16, 2.0**-14, down_global=1.0))) == (-INF, INF)


def test_bad_arguments_are_named():
    case, inputs = layer()
    with pytest.raises(ValueError, match="activation is 'relu'"):
        bounds.enclose(*arguments(inputs), **(case.options | {"activation": "relu"}))
    with pytest.raises(ValueError, match="hidden is 262160 and intermediate 16, but both should be <= 262144"):
        enclosed_with_ones(one_expert(1.0, 1.0, 1.0, hidden=2**18 + 16))
