"""The W4A16 kernels' launches around the GEMMs on inputs richer than a layer can have them, bit for bit."""

import pytest

from nvfp4_suite.cases.stages import ACTIVATED, SUMS, ActivationCase, SumCase
from nvfp4_suite.contract.case import torch_dtype
from nvfp4_suite.contract.gpus import PORTABLE
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.reference import judge, moe
from nvfp4_suite.reference.activations import Activation
from nvfp4_suite.reference.draws.stages import draw_activation, draw_routes
from nvfp4_suite.reference.rounding import rounding_form

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


@pytest.mark.parametrize("case", SUMS, ids=lambda case: case.id)
def test_sum_routes(case: SumCase, device):
    form = rounding_form("w4a16", torch_dtype(case.dtype))
    routes = draw_routes(case.id, *case)
    plan = plan_layer(PORTABLE, LayerShape(1, case.top_k, case.hidden, 16), case.tokens, dtype=case.dtype)
    found = launches.sum_routes(plan, routes, device)
    judge.bitwise(found, moe.combine(routes.double(), form).to(found.dtype), case=case.id)
