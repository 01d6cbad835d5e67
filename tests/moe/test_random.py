"""Layers on inputs like real ones, within the proved bound of the reference."""

import pytest

from nvfp4_suite.cases.layers import LONG, RANDOM
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.kernel import FORMATS, Kernel
from nvfp4_suite.reference import bounds, judge

from ..engine import runnable
from .subject import context_of, inputs_of, layer_arguments, run_kernel, taken

FIRST = [case for name in FORMATS for case in [case for case in RANDOM if case.format == name][:2]]


@pytest.mark.due
@pytest.mark.parametrize(("case", "kernel"), taken(runnable(RANDOM + LONG)))
def test_kernel_is_within_its_bound(case: Case, kernel: Kernel, device):
    inputs = inputs_of(case)
    actual = run_kernel(kernel, inputs, device, **case.options)
    interval = bounds.enclose(*layer_arguments(inputs), rounding=kernel.promise.rounding, **case.options)
    judge.bounded(actual, interval, **context_of(case), kernel=kernel.name)


REPEATABLE = [pair for pair in taken(FIRST) if pair.values[1].promise.repeatable]


@pytest.mark.parametrize(("case", "kernel"), REPEATABLE)
def test_a_repeatable_kernel_repeats_itself(case: Case, kernel: Kernel, device):
    first, second = (run_kernel(kernel, inputs_of(case), device, **case.options) for _ in range(2))
    judge.bitwise(second, first, **context_of(case), kernel=kernel.name)
