"""The reference layer against a plain loop, its edges, and its arguments."""

import pytest
import torch

from nvfp4_suite.contract.case import Case, random_inputs
from nvfp4_suite.contract.kernel import ACTIVATIONS
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.reference import formats, moe
from nvfp4_suite.reference.activations import Activation
from nvfp4_suite.reference.rounding import rounding_form

BF16, F64 = torch.bfloat16, torch.float64
EXACT = rounding_form(None, BF16)


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
                out[t] += w * (down[e] @ moe.activate(gate, up, Activation(activation), EXACT))
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


@pytest.mark.fault("vllm-project/vllm-xpu-kernels#571")
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


@pytest.mark.fault("sgl-project/sglang#38773")
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
        ({"rounding": "w4a8"}, ValueError, "rounding is 'w4a8', but should be one of None, 'w4a16', 'w4a16_atomic', "),
        ({"rounding": "w4a4"}, ValueError, "gate_up_input_scale is None, but should be given"),
        ({"input_quantization": "vllm"}, ValueError, "gate_up_input_scale is None, but should be given"),
        (
            {"rounding": "w4a16", "input_quantization": "vllm"},
            ValueError,
            "input_quantization is 'vllm', but should be None with rounding 'w4a16'",
        ),
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
