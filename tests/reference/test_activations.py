"""The gated activations: published numbers, textbook formulas, saturation and bad parameters."""

import math

import pytest
import torch

from nvfp4_suite.contract.kernel import ACTIVATIONS
from nvfp4_suite.reference import moe
from nvfp4_suite.reference.activations import Activation
from nvfp4_suite.reference.rounding import rounding_form

BF16, FP16, F64 = torch.bfloat16, torch.float16, torch.float64
EXACT = rounding_form(None, BF16)
W4A16 = rounding_form("w4a16", BF16)
W4A16_FP16 = rounding_form("w4a16", FP16)


def activated(name: str, gate: float, up: float, rounding=EXACT) -> float:
    gate, up = (torch.tensor([value], dtype=F64) for value in (gate, up))
    return moe.activate(gate, up, Activation(name), rounding).item()


@pytest.mark.fault("vllm-project/vllm#45738")
@pytest.mark.parametrize(
    ("gate", "up", "value"),
    [(10, 10, "55.9996"), (10, -10, "-41.9997"), (-10, 10, "-3.246e-06"), (1, -1, "0"), (7, 0, "6.99995")],
)
def test_swigluoai_as_published(gate, up, value):
    """vllm-project/vllm#45738; plain silu gives 99.995, -99.995, -0.00454, -0.731, 0."""
    digits = 4 if "e" in value else 6
    assert f"{activated('swigluoai', gate, up):.{digits}g}" == value


@pytest.mark.fault("vllm-project/vllm#45738")
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


@pytest.mark.fault("vllm-project/vllm#45738")
def test_an_unknown_activation_names_the_choices():
    with pytest.raises(
        ValueError, match="activation is 'swiglu', but should be one of silu, gelu, gelu_tanh, swigluoai"
    ):
        Activation("swiglu")


def test_a_nan_passes_every_activation():
    for name in ACTIVATIONS:
        assert math.isnan(activated(name, math.nan, 1.0))
        assert math.isnan(activated(name, 1.0, math.nan))
