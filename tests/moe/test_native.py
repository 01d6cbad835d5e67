"""The native FP4 form of W4A4, which no hardware here has, in the interpreter, which knows its dot: bit for bit."""

import pytest
import triton

from nvfp4_suite.cases.layers import W4A4
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.w4a4 import NATIVE
from nvfp4_suite.reference import judge

from ..engine import INTERPRETED
from .subject import context_of, expected_of, plan_options, run_plan

# Before 3.8 the interpreter cannot interpret such a dot, and a GPU without one gets the form that decodes.
KNOWN = INTERPRETED and tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 8)
CARD = Gpu("NVIDIA GeForce RTX 5090", (12, 0)) if KNOWN else Gpu("NVIDIA H200", (9, 0))
CASES = [case for case in W4A4 if case.tokens < 17 and {80, 128, 272} & {case.shape.hidden, case.shape.intermediate}]
CASES = [case for case in CASES if case.shape.hidden != 48]  # several steps of K, ragged and whole


@pytest.mark.parametrize("case", CASES)
def test_a_native_layer_equals_the_reference(case: Case, device):
    plan = plan_layer(CARD, case.shape, case.tokens, kernel=NATIVE, **plan_options(case))
    assert plan.launch("gate_up").constexpr("NATIVE") == plan.launch("down").constexpr("NATIVE") == KNOWN
    judge.bitwise(run_plan(plan, case, device), expected_of(case, "w4a4"), **context_of(case), plan=plan.reason)
