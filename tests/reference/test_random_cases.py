"""The random cases tell an activation from its near relatives (vllm-project/vllm#45738), in both formats."""

from functools import cache

import pytest
import torch

from nvfp4_suite.cases.layers import RANDOM
from nvfp4_suite.contract.case import Case, Inputs, random_inputs, torch_dtype
from nvfp4_suite.contract.kernel import FORMATS
from nvfp4_suite.reference import bounds, judge, moe
from nvfp4_suite.reference.activations import Activation


@cache
def inputs_of(case: Case) -> Inputs:
    return random_inputs(case)


@cache
def enclosure(case: Case) -> bounds.Interval:
    return bounds.enclose(*vars(inputs_of(case)).values(), rounding=case.format, **case.options)


def is_seen(case: Case, **options) -> bool:
    """Whether `bounded` refuses the layer that has `options` in place of the case's own."""
    layer = moe.expert_layer(*vars(inputs_of(case)).values(), rounding=case.format, **(case.options | options))
    try:
        judge.bounded(layer.to(torch_dtype(case.dtype)), enclosure(case))
    except AssertionError:
        return True
    return False


def cases_with(activation: str, format: str) -> list[Case]:
    return [case for case in RANDOM if (case.activation, case.format) == (activation, format)]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("activation", "relative"), [("gelu", "gelu_tanh"), ("gelu_tanh", "gelu"), ("silu", "gelu")])
def test_a_near_relative_of_the_activation_is_seen(activation, relative, format):
    cases = cases_with(activation, format)
    assert not any(is_seen(case) for case in cases)
    assert any(is_seen(case, activation=relative) for case in cases)


CLAMPS = {  # the right one: gate from above, up from both sides
    "gate from both sides": lambda gate, up, limit: (gate.clamp(-limit, limit), up.clamp(-limit, limit)),
    "gate not at all": lambda gate, up, limit: (gate, up.clamp(-limit, limit)),
    "up from above only": lambda gate, up, limit: (gate.clamp(max=limit), up.clamp(max=limit)),
    "up not at all": lambda gate, up, limit: (gate.clamp(max=limit), up),
    "up without its 1": lambda gate, up, limit: (gate.clamp(max=limit), up.clamp(-limit, limit) - 1),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("clamp", CLAMPS.values(), ids=CLAMPS.keys())
def test_every_other_way_to_clamp_swigluoai_is_seen(monkeypatch, clamp, format):
    cases = cases_with("swigluoai", format)
    assert cases and not any(is_seen(case) for case in cases)
    monkeypatch.setattr(Activation, "clamp", lambda self, gate, up: clamp(gate, up, self.limit))
    assert all(is_seen(case) for case in cases)


@pytest.mark.parametrize("format", FORMATS)
def test_another_alpha_or_limit_is_seen(format):
    for case in cases_with("swigluoai", format):
        assert is_seen(case, activation_alpha=1.0)
        assert is_seen(case, activation_limit=torch.inf)
