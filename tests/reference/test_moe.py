"""The reference layer: published numbers of the activations, every rounding point by hand, and the edges."""

import math

import pytest
import torch

from nvfp4_suite.contract.case import Case, random_inputs
from nvfp4_suite.contract.kernel import ACTIVATIONS
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.reference import formats, moe

BF16, FP16, F64 = torch.bfloat16, torch.float16, torch.float64
EXACT = moe.rounding_form(None, BF16)
W4A16 = moe.rounding_form("w4a16", BF16)
WIDE = moe.Rounding(fp32=moe.to_fp32, narrow=lambda t: t)  # shows fp32 roundings that one to d would hide
W4A16_FP16 = moe.rounding_form("w4a16", FP16)


def f64(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def activated(name: str, gate: float, up: float, rounding=EXACT) -> float:
    return moe.activate(f64(gate), f64(up), moe.Activation(name), rounding).item()


# ---- activations


@pytest.mark.parametrize(
    ("gate", "up", "value"),
    [(10, 10, "55.9996"), (10, -10, "-41.9997"), (-10, 10, "-3.246e-06"), (1, -1, "0"), (7, 0, "6.99995")],
)
def test_swigluoai_as_published(gate, up, value):
    """vllm-project/vllm#45738; plain silu gives 99.995, -99.995, -0.00454, -0.731, 0."""
    digits = 4 if "e" in value else 6
    assert f"{activated('swigluoai', gate, up):.{digits}g}" == value


@pytest.mark.parametrize(("name", "value"), [("gelu_tanh", 2.996363), ("gelu", 2.995950), ("silu", 2.857722)])
def test_near_relatives_are_told_apart(name, value):
    assert activated(name, 3.0, 1.0) == pytest.approx(value, abs=5e-7)


@pytest.mark.parametrize("x", [-20.0, -5.0, -1.25, -0.001, 0.0, 0.3, 2.0, 9.0])
def test_activations_equal_their_textbook_formulas(x):
    y = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    wanted = {
        "silu": x / (1 + math.exp(-x)),
        "gelu": x / 2 * (1 + math.erf(x / math.sqrt(2))),
        "gelu_tanh": x / 2 * (1 + math.tanh(y)),
        "swigluoai": x / (1 + math.exp(-1.702 * x)) if x < 7 else 7 / (1 + math.exp(-1.702 * 7)),
    }
    for name in ACTIVATIONS:
        up = 0.0 if name == "swigluoai" else 1.0  # swigluoai multiplies by up + 1
        assert activated(name, x, up) == pytest.approx(wanted[name], rel=1e-12, abs=1e-14)


@pytest.mark.parametrize(
    ("name", "zero_below", "identity_above"), [("silu", -1024, 40), ("gelu", -16, 10), ("gelu_tanh", -16, 10)]
)
def test_saturated_gates_are_exact_and_keep_the_sign_of_zero(name, zero_below, identity_above):
    for rounding in (W4A16, W4A16_FP16):
        for gate, up, value in [
            (zero_below, 3.0, -0.0),
            (zero_below, -3.0, 0.0),
            (0.0, -3.0, -0.0),
            (identity_above, 2.0, 2.0 * identity_above),
        ]:
            result = activated(name, gate, up, rounding)
            assert (result, math.copysign(1, result)) == (value, math.copysign(1, value))


def test_an_unknown_activation_names_the_choices():
    with pytest.raises(
        ValueError, match="activation is 'swiglu', but should be one of silu, gelu, gelu_tanh, swigluoai"
    ):
        moe.Activation("swiglu")


def test_a_nan_passes_every_activation():
    for name in ACTIVATIONS:
        assert math.isnan(activated(name, math.nan, 1.0))
        assert math.isnan(activated(name, 1.0, math.nan))


# ---- rounding points, one by one


def fp32(x: float) -> float:
    return moe.to_fp32(f64(x)).item()


def test_sums_are_rounded_to_fp32_before_the_global():
    """2^24 + 1 is no fp32: it becomes 2^24, and only then is it multiplied."""
    x, weight = f64([2.0**24, 1.0]), f64([1.0, 1.0], [0.0, 1.0])
    gate, up = moe.gate_up(x, weight, f64(0.75, 1.0), WIDE)
    assert gate.item() == 0.75 * 2**24 != fp32(0.75 * (2**24 + 1))
    assert up.item() == 1.0


def test_gate_up_is_multiplied_by_the_global_and_rounded_to_d():
    x, weight = f64([1 + 2**-8]), f64([1.0], [1.0])
    global_scale = f64(1 + 2**-23, 1.0)
    product = (1 + 2**-8) * (1 + 2**-23)  # 1 + 2^-8 + 2^-23 + 2^-31
    gate, up = moe.gate_up(x, weight, global_scale, W4A16)
    assert W4A16.fp32(f64(product)).item() == 1 + 2**-8 + 2**-23
    assert gate.item() == 1 + 2**-7  # above the midpoint
    assert up.item() == 1.0  # the midpoint itself
    assert moe.gate_up(x, weight, global_scale, EXACT)[0].item() == product


def test_an_fp32_rounding_comes_before_the_narrow_one():
    """1 + 2^-8 + 2^-26 lies above a bf16 midpoint; fp32 makes it the midpoint, which goes to the even 1.0."""
    x, weight = f64([1.0, 1.0]), f64([1 + 2**-8, 2**-26], [0.0, 0.0])
    gate, _ = moe.gate_up(x, weight, f64(1.0, 1.0), W4A16)
    assert gate.item() == 1.0


def test_f_of_the_gate_is_rounded_before_it_meets_up():
    silu = 1 / (1 + math.exp(-1))
    assert activated("silu", 1.0, 11.0, WIDE) == fp32(fp32(silu) * 11) != fp32(silu * 11)
    assert activated("silu", 1.0, 11.0, W4A16) == torch.tensor(fp32(fp32(silu) * 11)).to(BF16).item()


def test_swigluoai_adds_one_to_up_in_fp32():
    """1 + 2^-24 is 1 in fp32."""
    f = fp32(7 / (1 + math.exp(-1.702 * 7)))
    assert activated("swigluoai", 7.0, 2.0**-24, WIDE) == f != fp32(f * (1 + 2.0**-24))


def test_down_multiplies_by_the_global_and_then_by_the_routing_weight():
    third, seventh = fp32(1 / 3), fp32(1 / 7)
    result = moe.down(f64([15.0]), f64([1.0]), f64(third), f64(seventh), WIDE).item()
    assert result == fp32(fp32(15 * third) * seventh)
    assert result not in (
        fp32(15 * third * seventh),
        fp32(15 * fp32(third * seventh)),
        fp32(fp32(15 * seventh) * third),
    )


def test_down_is_rounded_to_d_per_route_and_without_a_weight_if_that_was_on_the_input():
    h, weight, one = f64([1 + 2**-8, 2**-9]), f64([1.0, 1.0]), f64(1.0)
    assert moe.down(h, weight, one, f64(2.0), W4A16).item() == 2 * (1 + 2**-7)
    assert moe.down(h, weight, one, None, W4A16).item() == 1 + 2**-7


def test_routes_are_summed_in_slot_order_in_fp32_from_plus_zero():
    routes = f64([[2.0**24], [1.0], [1.0], [-(2.0**24)]])  # one token, four slots
    assert moe.combine(routes, W4A16).item() == 0.0  # fp32 loses each 1 in turn; 2 if the ones came first
    assert moe.combine(routes, EXACT).item() == 2.0
    minus_zeros = f64([[-0.0], [-0.0]])
    assert not torch.signbit(moe.combine(minus_zeros, W4A16)).any()


def test_the_total_is_rounded_to_d():
    routes = f64([[1.0], [2**-8], [2**-9]])
    assert moe.combine(routes, W4A16).item() == 1 + 2**-7


def test_a_weighted_input_is_rounded_to_d():
    x, w = f64([1 + 2**-7]), f64(1 + 2**-7)
    assert moe.weigh_input(x, w, W4A16).item() == 1 + 2**-6
    assert moe.weigh_input(x, w, EXACT).item() == (1 + 2**-7) ** 2


def test_sums_of_minus_zeros_are_plus_zero():
    gate, up = moe.gate_up(f64([-0.0]), f64([1.0], [1.0]), f64(1.0, -1.0), W4A16)
    assert not torch.signbit(gate).any()
    assert torch.signbit(up).all()  # +0 times a negative global


def test_fp16_overflows_behind_the_global_only():
    """vllm-project/vllm#37135: the sum is 344,064, beyond fp16; times the global it is 42."""
    x, weight = f64([8.0] * 16), f64([6.0 * 448] * 16, [6.0 * 448] * 16)
    gate, up = moe.gate_up(x, weight, f64(2**-13, 1.0), W4A16_FP16)
    assert gate.item() == 42.0
    assert up.item() == math.inf


# ---- the layer


def layer(tokens=5, shape=None, routing="random", **options):
    case = Case(shape or LayerShape(4, 2, 64, 32), tokens, routing, "random", **options)
    return case, random_inputs(case)


def plain_layer(inputs, activation: str) -> torch.Tensor:
    """The layer token by token and route by route, from whole weights: no stage of `moe` but the activation."""
    banks = inputs.banks
    gate_up = formats.dequantize(banks.gate_up_packed, banks.gate_up_scale, banks.gate_up_global)
    down = formats.dequantize(banks.down_packed, banks.down_scale, banks.down_global)
    out = torch.zeros(inputs.hidden_states.shape, dtype=F64)
    for t, (ids, weights) in enumerate(zip(inputs.topk_ids.tolist(), inputs.topk_weights.tolist(), strict=True)):
        for e, w in zip(ids, weights, strict=True):
            if 0 <= e < banks.experts:
                gate, up = (gate_up[e] @ inputs.hidden_states[t].double()).chunk(2)
                out[t] += w * (down[e] @ moe.activate(gate, up, moe.Activation(activation), EXACT))
    return out


def run(inputs, **options):
    return moe.expert_layer(inputs.hidden_states, inputs.banks, inputs.topk_weights, inputs.topk_ids, **options)


@pytest.mark.parametrize("routing", ["random", "hot", "few", "twice", "dropped"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_layer_equals_a_plain_loop(routing, activation):
    _, inputs = layer(tokens=7, routing=routing)
    torch.testing.assert_close(
        run(inputs, activation=activation), plain_layer(inputs, activation), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_rounded_layer_holds_values_of_d_near_the_true_ones(dtype):
    _, inputs = layer(tokens=7, dtype=dtype)
    rounded, true = run(inputs, rounding="w4a16"), run(inputs)
    assert rounded.dtype == F64
    assert torch.equal(rounded.to(inputs.hidden_states.dtype).double(), rounded)
    assert not torch.equal(rounded, true)
    assert (rounded - true).norm() < {"bf16": 2**-7, "fp16": 2**-10}[dtype] * true.norm()


def test_a_weight_on_the_input_is_not_applied_again():
    _, inputs = layer()
    halves = torch.full_like(inputs.topk_weights, 0.5)
    scaled = moe.expert_layer(inputs.hidden_states / 2, inputs.banks, torch.ones_like(halves), inputs.topk_ids)
    on_input = moe.expert_layer(inputs.hidden_states, inputs.banks, halves, inputs.topk_ids, weight_on_input=True)
    torch.testing.assert_close(on_input, scaled, rtol=1e-13, atol=1e-13)


def test_ids_that_are_no_expert_contribute_exact_zeros():
    """vllm-project/vllm-xpu-kernels#571; a NaN weight on such a route is not even looked at."""
    _, inputs = layer(tokens=3, shape=LayerShape(2, 2, 64, 32))
    ids = torch.tensor([[0, -1], [-1, 3], [1, 0]], dtype=torch.int32)
    weights = torch.tensor([[0.5, torch.nan], [torch.nan, torch.nan], [0.25, 0.5]])
    for rounding in (None, "w4a16"):
        out = moe.expert_layer(inputs.hidden_states, inputs.banks, weights, ids, rounding=rounding)
        alone = moe.expert_layer(
            inputs.hidden_states[:1], inputs.banks, weights[:1, :1], ids[:1, :1], rounding=rounding
        )
        torch.testing.assert_close(out[0], alone[0], rtol=1e-14, atol=0)
        assert torch.equal(out[1], torch.zeros(64, dtype=F64)) and not torch.signbit(out[1]).any()
        assert out[2].isfinite().all() and out[2].any()


def test_a_nan_stays_in_its_row():
    _, inputs = layer(tokens=4)
    clean = run(inputs, rounding="w4a16")
    inputs.hidden_states[2, 5] = torch.nan
    dirty = run(inputs, rounding="w4a16")
    assert dirty[2].isnan().all()
    assert torch.equal(dirty[[0, 1, 3]], clean[[0, 1, 3]])


def test_a_broken_expert_that_no_token_visits_is_not_touched():
    _, inputs = layer(tokens=4, routing="few")
    clean = run(inputs)
    inputs.banks.down_global[3] = torch.inf
    inputs.banks.gate_up_scale.view(torch.uint8)[3] = 0x7F
    assert torch.equal(run(inputs), clean)


def test_zero_tokens_give_an_empty_result():
    _, inputs = layer(tokens=0)
    assert run(inputs, rounding="w4a16").shape == (0, 64)


def test_dense_layer_takes_whole_weights():
    _, inputs = layer()
    banks = inputs.banks
    gate_up = formats.dequantize(banks.gate_up_packed, banks.gate_up_scale, banks.gate_up_global)
    down = formats.dequantize(banks.down_packed, banks.down_scale, banks.down_global)
    dense = moe.dense_layer(inputs.hidden_states, gate_up, down, inputs.topk_weights, inputs.topk_ids)
    torch.testing.assert_close(dense, run(inputs), rtol=1e-12, atol=1e-13)


# ---- bad arguments


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"activation": "relu"}, ValueError, "activation is 'relu', but should be one of silu"),
        ({"activation_alpha": 0.0}, ValueError, "activation_alpha is 0.0, but should be above 0"),
        ({"activation_limit": -7.0}, ValueError, "activation_limit is -7.0, but should be above 0"),
        ({"rounding": "w4a4"}, ValueError, "rounding is 'w4a4', but should be one of None, 'w4a16'"),
        ({"input_quantization": "vllm"}, ValueError, "input_quantization is 'vllm', .* W4A4"),
        ({"hidden_states": torch.zeros(5, 32, dtype=BF16)}, ValueError, r"gate_up_f64 has shape \[4, 64, 64\]"),
        (
            {"hidden_states": torch.zeros(64, dtype=BF16)},
            ValueError,
            r"hidden_states has shape \[64\], .* \[tokens, hidden\]",
        ),
        ({"hidden_states": torch.zeros(5, 64, dtype=torch.int32)}, TypeError, r"hidden_states is torch\.int32"),
        ({"topk_weights": torch.zeros(4, 2)}, ValueError, r"topk_weights has shape \[4, 2\], .* \[5, 2\]"),
        ({"topk_weights": torch.zeros(5)}, ValueError, r"topk_weights has shape \[5\], .* \[tokens, top_k\]"),
        ({"topk_weights": torch.zeros(5, 2, dtype=F64)}, TypeError, r"topk_weights is torch\.float64"),
        ({"topk_ids": torch.zeros(5, 3, dtype=torch.int32)}, ValueError, r"topk_ids has shape \[5, 3\], .* \[5, 2\]"),
        ({"topk_ids": torch.zeros(5, 2)}, TypeError, r"topk_ids is torch\.float32"),
    ],
)
def test_bad_arguments_are_named(changes, error, message):
    _, inputs = layer()
    names = ("hidden_states", "banks", "topk_weights", "topk_ids")
    with pytest.raises(error, match=message):
        moe.expert_layer(**({name: getattr(inputs, name) for name in names} | changes))


def test_rounding_needs_16_bit_activations():
    _, inputs = layer()
    with pytest.raises(TypeError, match=r"hidden_states is torch\.float32, but should be bfloat16 or float16"):
        moe.expert_layer(
            inputs.hidden_states.float(), inputs.banks, inputs.topk_weights, inputs.topk_ids, rounding="w4a16"
        )


def test_dense_layer_checks_its_weights():
    x, w, ids = torch.zeros(1, 16, dtype=F64), torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.int64)
    gate_up, down = torch.zeros(2, 32, 16, dtype=F64), torch.zeros(2, 16, 16, dtype=F64)
    with pytest.raises(TypeError, match=r"gate_up_f64 is torch\.float32"):
        moe.dense_layer(x, gate_up.float(), down, w, ids)
    with pytest.raises(ValueError, match=r"down_f64 has shape \[2, 16, 8\], .* \[experts, hidden, intermediate\]"):
        moe.dense_layer(x, gate_up, down[..., :8], w, ids)
    with pytest.raises(ValueError, match=r"down_global has shape \[2, 8\]"):
        moe.dense_layer(x, gate_up, down, w, ids, down_global=torch.ones(2, 8))
