"""f of every activation is enclosed, however it is evaluated in fp32, and no wider than that needs."""

import math

import pytest
import torch

from nvfp4_suite.contract.case import torch_dtype
from nvfp4_suite.contract.kernel import ACTIVATIONS, DTYPES
from nvfp4_suite.reference import activation_bounds
from nvfp4_suite.reference.activation_bounds import enclose_f
from nvfp4_suite.reference.activations import Activation
from nvfp4_suite.reference.ranges import Range

from .simulated import sloppy_f
from .test_ranges import scalar

F64 = torch.float64
INF, NAN = math.inf, math.nan


def all_values(dtype: str) -> torch.Tensor:
    """Every finite value of `dtype`, ascending, as float64."""
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch_dtype(dtype)).double()
    return x[x.isfinite()].sort().values


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_value_of_f_in_fp32_is_enclosed(name, dtype):
    activation = Activation(name)
    gate, _ = activation.clamp(x := all_values(dtype), x)
    enclosed = enclose_f(Range.point(gate), activation)
    for value in (activation.f(gate), sloppy_f(activation, gate)):
        assert ((enclosed.lower <= value) & (value <= enclosed.upper)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_tanh_may_be_evaluated_by_its_definition(dtype):
    """In fp32 1 + tanh cancels below about -3."""
    gate = all_values(dtype)
    found = torch.nn.functional.gelu(gate.float(), approximate="tanh").double()
    by_sigmoid = sloppy_f(Activation("gelu_tanh"), gate)
    assert ((found - by_sigmoid).abs() > 1e-3 * by_sigmoid.abs()).any()
    enclosed = enclose_f(Range.point(gate), Activation("gelu_tanh"))
    assert ((enclosed.lower <= found) & (found <= enclosed.upper)).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_f_is_enclosed_on_intervals_that_hold_its_minimum(name):
    activation = Activation(name)
    x = torch.linspace(-6, 2, 801, dtype=F64)
    for start in range(0, 700, 13):
        for length in (0, 1, 10, 100):
            inner = x[start : start + length + 1]
            enclosed = enclose_f(scalar(inner[0].item(), inner[-1].item()), activation)
            values = activation.f(inner)
            assert enclosed.lower.item() <= values.min() and values.max() <= enclosed.upper.item()
            assert enclosed.upper.item() - values.max() < 1e-5  # and is no wider than the error of fp32
            assert values.min() - enclosed.lower.item() < 1e-4  # nor than what lies between two of these x


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_f_is_lowest_where_it_is_said_to_be(name):
    activation = Activation(name)
    x = activation_bounds._lowest_at(activation) + torch.tensor([-1e-4, 0, 1e-4], dtype=F64)
    left, lowest, right = activation.f(x).tolist()
    assert left - lowest > 0 and right - lowest > 0
    assert left - lowest == pytest.approx(right - lowest, rel=1e-3, abs=0)


@pytest.mark.parametrize(
    ("name", "lower", "upper", "ends"),
    [
        ("silu", INF, INF, (INF, INF)),
        ("silu", NAN, NAN, (NAN, NAN)),
        ("silu", -INF, -INF, (NAN, NAN)),
        ("silu", -INF, -65504.0, (-INF, INF)),
        ("gelu", -INF, INF, (-INF, INF)),
        ("swigluoai", -INF, 7.0, (-INF, INF)),
    ],
)
def test_infinities_and_nans_in_activations(name, lower, upper, ends):
    enclosed = enclose_f(scalar(lower, upper), Activation(name))
    assert [enclosed.lower.item(), enclosed.upper.item()] == pytest.approx(ends, nan_ok=True)
