"""The W4A16 kernels' launches around the GEMMs on inputs richer than a layer can have them, bit for bit."""

import math

import pytest
import torch

from nvfp4_suite.cases.stages import ACTIVATED, SUMS, ActivationCase, SumCase
from nvfp4_suite.contract.case import torch_dtype
from nvfp4_suite.contract.gpus import PORTABLE
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import experts
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.reference import judge, moe
from nvfp4_suite.reference.activations import Activation
from nvfp4_suite.reference.draws.stages import draw_activation, draw_routes
from nvfp4_suite.reference.rounding import rounding_form

from ..poison import poisoned_allocations
from . import launches


@pytest.mark.parametrize("case", ACTIVATED, ids=lambda case: case.id)
def test_activation(case: ActivationCase, device):
    """Also the signs of zeros: a gate of -0, and one below the range of f, times either sign of up."""
    form = rounding_form("w4a16", torch_dtype(case.dtype))
    activation = Activation.of_options(case.activation, 1.702, case.limit, form)
    gate_up = draw_activation(case.id, case.rows, case.columns, case.dtype, activation)
    shape = LayerShape(1, 1, 16, case.columns)
    plan = plan_layer(PORTABLE, shape, case.rows, dtype=case.dtype, activation=case.activation)
    found = launches.activation(plan, gate_up, case.limit, device)
    expected = moe.activate(*gate_up.double().chunk(2, dim=1), activation, form).to(found.dtype)
    judge.bitwise(found, expected, zeros_expected=True, case=case.id)


def _gelu_tanh(gate: torch.Tensor, up: float, cubic: float) -> torch.Tensor:
    """float64, by Hendrycks and Gimpel's formula, whose `cubic` is 0.044715."""
    gate = gate.double()
    return gate * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + cubic * gate**3))) * up


def _steps(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """How far `found` is from `exact`, in steps of fp16 there."""
    exponent = exact.abs().log2().floor()
    return (found.double() - exact).abs() / 2.0 ** (exponent - 10)


def test_every_digit_of_gelu_tanhs_constant_is_there(device):
    """At gates of -5 to -4 its last two digits are worth three and more steps of fp16; a large up keeps it normal."""
    gate = torch.linspace(-5, -4, 64).half()[None]
    gate_up = torch.cat([gate, torch.full_like(gate, 4096)], 1)
    plan = plan_layer(PORTABLE, LayerShape(1, 1, 16, 64), 1, dtype="fp16", activation="gelu_tanh")
    found = launches.activation(plan, gate_up, 7.0, device)
    assert _steps(found, _gelu_tanh(gate, 4096, 0.044715)).max() <= 1
    assert _steps(found, _gelu_tanh(gate, 4096, 0.0447)).min() > 1


def test_rows_of_dropped_routes_are_left_alone(device):
    plan = plan_layer(PORTABLE, LayerShape(2, 1, 16, 32), 5)
    ids = torch.tensor([[0], [-1], [1], [2], [2**31 - 1]], dtype=torch.int32, device=device)
    gate_up = torch.ones(5, 64, dtype=torch.bfloat16, device=device)
    with poisoned_allocations():
        out = gate_up.new_empty(5, 32)
        options = {"alpha": 1.702, "limit": 7.0, "topk_ids": ids, "experts": 2}
        experts.by_columns(plan.launch("activation"), gate_up=gate_up, out=out, **options)
    assert out[[1, 3, 4]].isnan().all() and not out[[0, 2]].isnan().any()


@pytest.mark.parametrize("case", SUMS, ids=lambda case: case.id)
def test_sum_routes(case: SumCase, device):
    form = rounding_form("w4a16", torch_dtype(case.dtype))
    routes = draw_routes(case.id, *case)
    plan = plan_layer(PORTABLE, LayerShape(1, case.top_k, case.hidden, 16), case.tokens, dtype=case.dtype)
    found = launches.sum_routes(plan, routes, device)
    judge.bitwise(found, moe.combine(routes.double(), form).to(found.dtype), case=case.id)
