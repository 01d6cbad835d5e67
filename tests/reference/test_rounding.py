"""Every rounding point of the layer, one by one and by hand."""

import dataclasses
import math

import pytest
import torch

from nvfp4_suite.reference import moe
from nvfp4_suite.reference.activations import Activation
from nvfp4_suite.reference.rounding import rounding_form, to_fp32, unrounded

BF16, FP16, F64 = torch.bfloat16, torch.float16, torch.float64
EXACT = rounding_form(None, BF16)
W4A16 = rounding_form("w4a16", BF16)
W4A16_FP16 = rounding_form("w4a16", FP16)
WIDE = dataclasses.replace(W4A16, between=unrounded, narrow=unrounded)  # shows fp32 roundings that one to d would hide


def f64(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def activated(name: str, gate: float, up: float, rounding) -> float:
    return moe.activate(f64(gate), f64(up), Activation(name), rounding).item()


def fp32(x: float) -> float:
    return to_fp32(f64(x)).item()


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


@pytest.mark.fault("vllm-project/vllm#37135")
def test_fp16_overflows_behind_the_global_only():
    """vllm-project/vllm#37135: the sum is 344,064, beyond fp16; times the global it is 42."""
    x, weight = f64([8.0] * 16), f64([6.0 * 448] * 16, [6.0 * 448] * 16)
    gate, up = moe.gate_up(x, weight, f64(2**-13, 1.0), W4A16_FP16)
    assert gate.item() == 42.0
    assert up.item() == math.inf
