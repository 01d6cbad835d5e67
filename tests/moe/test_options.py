"""A layer's options are of their own types, and in the range of what the kernels compute with."""

import pytest

from nvfp4_suite.contract.case import Case, random_inputs
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import experts

from .subject import layer_arguments

CASE = Case(LayerShape(3, 2, 48, 32), 5, inputs="random")


@pytest.mark.parametrize("flag", ["no", 0, None], ids=repr)
def test_a_flag_of_another_type_is_refused(flag, device):
    with pytest.raises(TypeError, match=f"weight_on_input is {flag!r}, but should be True or False"):
        experts.fused_experts(*layer_arguments(random_inputs(CASE).to(device)), weight_on_input=flag)


@pytest.mark.parametrize("name", ["activation_alpha", "activation_limit"])
@pytest.mark.parametrize(
    "value", [10**400, 0, -1.0, float("nan"), 3.5e38, float("inf")], ids=lambda value: f"{value!r:.5}"
)
def test_a_number_that_fp32_has_not_is_refused(name: str, value, device):
    with pytest.raises(ValueError, match=f"{name} is .*, but should be above 0 and finite"):
        experts.fused_experts(*layer_arguments(random_inputs(CASE).to(device)), **{name: value})


def test_no_plan_is_refused(device):
    with pytest.raises(TypeError, match="plan is None, but should be a LayerPlan"):
        experts.run(None, *layer_arguments(random_inputs(CASE).to(device)))
