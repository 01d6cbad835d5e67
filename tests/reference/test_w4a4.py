"""The W4A4 layer: static input scales, NVFP4 between the stages, and every rounding point by hand."""

import math
from dataclasses import replace

import pytest
import torch

from nvfp4_suite.contract.banks import ExpertBanks
from nvfp4_suite.contract.case import Case, Inputs, random_inputs
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.reference import formats, moe
from nvfp4_suite.reference.activations import Activation
from nvfp4_suite.reference.quantize import RECIPES, global_scale_of, quantize
from nvfp4_suite.reference.rounding import rounding_form

BF16, F64 = torch.bfloat16, torch.float64
W4A4 = rounding_form("w4a4", BF16)
CASE = Case(LayerShape(4, 3, 64, 48), 6, inputs="random", format="w4a4")


def f64(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def run(inputs: Inputs, **options) -> torch.Tensor:
    return moe.expert_layer(inputs.hidden_states, inputs.banks, inputs.topk_weights, inputs.topk_ids, **options)


# ---- what enters a GEMM


def test_what_enters_is_quantized_with_the_reciprocal_of_the_input_scale():
    """One block of amax 6 with an input scale of 1/64: S = 64, s = e4m3(64 * fl(6 * fl(1/6))) = 64, codes are x."""
    grid = [0.0, 0.5, -1.0, 1.5, 2.0, -3.0, 4.0, 6.0, 0.25, 0.75, -1.25, 1.75, 2.5, 3.5, -5.0, -0.1]
    rounded = [0.0, 0.5, -1.0, 1.5, 2.0, -3.0, 4.0, 6.0, 0.0, 1.0, -1.0, 2.0, 2.0, 4.0, -4.0, -0.0]
    entered = moe.enter(f64(grid), torch.tensor(1 / 64), W4A4)
    assert entered.tolist() == [[64.0 * value for value in rounded]]
    assert torch.signbit(entered[0, -1])


def test_nothing_is_quantized_without_a_recipe():
    x = f64([1 / 3] * 16)
    assert torch.equal(moe.enter(x, None, rounding_form("w4a16", BF16)), x)


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_input_scale_is_what_each_producer_would_store(recipe):
    """A power of two, so that every way of storing it is exact."""
    amax = torch.tensor(2688 * 2.0**-7)
    assert moe.stored(torch.tensor(2.0**-7), recipe) == global_scale_of(amax, recipe)


def test_a_nan_makes_its_block_nan_and_no_other():
    x = torch.ones(1, 48, dtype=F64)
    x[0, 20] = math.nan
    entered = moe.enter(x, torch.tensor(1 / 64), W4A4)
    assert entered.isnan().tolist() == [[False] * 16 + [True] * 16 + [False] * 16]


# ---- rounding points


def test_gate_up_and_the_activation_stay_in_fp32():
    """(1 + 2^-20) is no bf16; it would be 1 behind gate_up or the activation of W4A16."""
    gate, up = moe.gate_up(f64([1 + 2.0**-20]), f64([1.0], [1.0]), f64(64.0, 1.0), W4A4)
    assert (gate.item(), up.item()) == (64 + 2.0**-14, 1 + 2.0**-20)
    h = moe.activate(gate, up, Activation("silu"), W4A4).item()
    assert h == torch.tensor(gate.item() * up.item()).float().item() != torch.tensor(h).to(BF16).item()


def test_alpha_is_rounded_before_it_multiplies():
    scale, weight_global = torch.tensor([1 / 3]), torch.tensor([[1 / 7, 1 / 11]])
    alpha, largest = moe._alpha("gate_up", weight_global, scale, W4A4)
    assert torch.equal(alpha.float(), scale * weight_global) and largest == scale[0]
    exact, _ = moe._alpha("gate_up", weight_global, scale, rounding_form(None, BF16, "vllm"))
    assert torch.equal(exact, scale.double() * weight_global.double()) and not torch.equal(exact, alpha)


def test_a_route_is_rounded_to_d():
    assert moe.down(f64([1 + 2**-8]), f64([1.0]), f64(1.0), f64(2.0), W4A4).item() == 2.0
    assert moe.down(f64([1 + 2**-8 + 2**-20]), f64([1.0]), f64(1.0), f64(2.0), W4A4).item() == 2 + 2**-6


@pytest.mark.parametrize("form", ["w4a16_atomic", "w4a4_atomic"])
def test_atomics_round_every_addition_to_d(form):
    """1 + 2^-8 is a tie in bf16, which goes to 1, twice; in fp32 the two halves of a unit add up."""
    routes = f64([[1.0], [2**-8], [2**-8]])
    assert moe.combine(routes, rounding_form(form, BF16)).item() == 1.0
    assert moe.combine(routes, W4A4).item() == 1 + 2**-7


# ---- the layer


def plain_layer(inputs: Inputs) -> torch.Tensor:
    """Route by route, from whole weights and whole activations, in float64 throughout but for the quantization."""
    banks = inputs.banks
    gate_up = formats.dequantize(banks.gate_up_packed, banks.gate_up_scale, banks.gate_up_global)
    down = formats.dequantize(banks.down_packed, banks.down_scale, banks.down_global)

    def entered(x: torch.Tensor, input_scale: torch.Tensor) -> torch.Tensor:
        scale = max(input_scale.tolist())
        packed, scales = quantize(x.float(), 1 / torch.tensor(scale), "vllm")
        return formats.dequantize_blocks(packed, scales) * scale

    out = torch.zeros(inputs.hidden_states.shape, dtype=F64)
    for t, (ids, weights) in enumerate(zip(inputs.topk_ids.tolist(), inputs.topk_weights.tolist(), strict=True)):
        for e, w in zip(ids, weights, strict=True):
            gate, up = (gate_up[e] @ entered(inputs.hidden_states[t], banks.gate_up_input_scale)).chunk(2)
            out[t] += w * (down[e] @ entered(gate * torch.sigmoid(gate) * up, banks.down_input_scale))
    return out


def test_the_layer_equals_a_plain_loop():
    inputs = random_inputs(CASE)
    torch.testing.assert_close(run(inputs, input_quantization="vllm"), plain_layer(inputs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_rounded_layer_holds_values_of_d_near_the_true_ones(dtype):
    inputs = random_inputs(replace(CASE, dtype=dtype))
    rounded, true, unquantized = (
        run(inputs, rounding="w4a4"),
        run(inputs, input_quantization="vllm"),
        run(inputs),
    )
    assert torch.equal(rounded.to(inputs.hidden_states.dtype).double(), rounded)
    assert 0 < (rounded - true).norm() < {"bf16": 2**-8, "fp16": 2**-11}[dtype] * true.norm()
    assert 0.01 < (true - unquantized).norm() / true.norm() < 0.5  # four bits are few


def test_the_largest_input_scale_of_the_layer_serves_every_expert():
    """Also that of an expert without a token."""
    inputs = random_inputs(CASE)
    inputs.topk_ids.clamp_(max=2)
    for name in ("gate_up_input_scale", "down_input_scale"):
        scale = getattr(inputs.banks, name)
        scale[3] = 2 * scale.max()
        shared = replace(inputs, banks=replace(inputs.banks, **{name: torch.full_like(scale, scale[3].item())}))
        assert torch.equal(run(inputs, rounding="w4a4"), run(shared, rounding="w4a4"))
        mean = replace(inputs, banks=replace(inputs.banks, **{name: torch.full_like(scale, scale.mean().item())}))
        assert not torch.equal(run(inputs, rounding="w4a4"), run(mean, rounding="w4a4"))


def test_input_scales_do_not_touch_w4a16():
    inputs = random_inputs(CASE)
    plain = replace(inputs, banks=replace(inputs.banks, gate_up_input_scale=None, down_input_scale=None))
    assert torch.equal(run(inputs, rounding="w4a16"), run(plain, rounding="w4a16"))


def test_a_weight_on_the_input_is_rounded_to_d_before_it_is_quantized():
    inputs = random_inputs(CASE)
    weighted = (inputs.hidden_states[:, None] * inputs.topk_weights[..., None]).to(BF16)
    ones = torch.ones(1, 1)
    slots = torch.stack(
        [
            moe.expert_layer(weighted[:, slot], inputs.banks, ones.expand(6, 1), ids[:, None], rounding="w4a4")
            for slot, ids in enumerate(inputs.topk_ids.T)
        ],
        dim=1,
    )
    assert torch.equal(run(inputs, rounding="w4a4", weight_on_input=True), moe.combine(slots, W4A4))


def test_a_nan_stays_in_its_row():
    inputs = random_inputs(CASE)
    clean = run(inputs, rounding="w4a4")
    inputs.hidden_states[2, 5] = math.nan
    dirty = run(inputs, rounding="w4a4")
    assert dirty[2].isnan().all()
    assert torch.equal(dirty[[0, 1, 3, 4, 5]], clean[[0, 1, 3, 4, 5]])


@pytest.mark.parametrize("name", ["gate_up_input_scale", "down_input_scale"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_input_scales_must_be_positive_numbers(name, value):
    inputs = random_inputs(CASE)
    getattr(inputs.banks, name)[1] = value
    with pytest.raises(ValueError, match=rf"{name} holds .*{value}.*, but should be finite and above 0"):
        run(inputs, rounding="w4a4")


def test_an_unknown_recipe_is_named():
    with pytest.raises(ValueError, match="'marlin', but should be one of modelopt, "):
        run(random_inputs(CASE), input_quantization="marlin")


# ---- unequal globals


def two_experts(gate: tuple[float, float], up: tuple[float, float]) -> ExpertBanks:
    """E = 2, H = I = 16, every weight 1 before its global; gate and up rows have globals of their own per expert."""
    rows = torch.full((2, 32, 8), 0x22, dtype=torch.uint8)
    scale = torch.full((2, 32, 1), 0x38, dtype=torch.uint8).view(torch.float8_e4m3fn)
    gate_up_global = torch.tensor([[g] * 16 + [u] * 16 for g, u in zip(gate, up, strict=True)])
    half = rows[:, :16].clone(), scale[:, :16].clone()
    return ExpertBanks(rows, scale, gate_up_global, *half, torch.ones(2, 16))


@pytest.mark.fault("vllm-project/vllm#54974")
def test_gate_and_up_keep_their_own_globals():
    """vllm-project/vllm#54974: expert 0 has 1 and 0.25, expert 1 has 0.25 and 1; the sums are 256, where silu is x.

    The gate's global for both halves would give 256 * 256 and 64 * 64, the larger one 256 * 256 twice.
    """
    x = torch.full((2, 16), 16.0).to(BF16)
    ids = torch.tensor([[0], [1]], dtype=torch.int32)
    out = moe.expert_layer(x, two_experts((1.0, 0.25), (0.25, 1.0)), torch.ones(2, 1), ids, rounding="w4a16")
    assert out[0].tolist() == [256.0 * 64 * 16] * 16
    assert out[1].tolist() == [64.0 * 256 * 16] * 16
