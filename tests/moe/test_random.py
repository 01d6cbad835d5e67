"""Layers on inputs like real ones, within the proved bound of the reference."""

import pytest

from nvfp4_suite.cases.layers import RANDOM
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.kernel import Kernel
from nvfp4_suite.kernels.registry import KERNELS
from nvfp4_suite.reference import bounds, judge

from ..engine import runnable
from .subject import inputs_of, layer_arguments, run_kernel


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
@pytest.mark.parametrize("case", runnable(RANDOM))
def test_kernel_is_within_its_bound(case: Case, kernel: Kernel, device):
    inputs = inputs_of(case)
    actual = run_kernel(kernel, inputs, device, **case.options)
    judge.bounded(actual, bounds.enclose(*layer_arguments(inputs), **case.options), case=case.id, kernel=kernel.name)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
@pytest.mark.parametrize("case", RANDOM[:2])
def test_a_repeatable_kernel_repeats_itself(case: Case, kernel: Kernel, device):
    assert kernel.promise.repeatable
    first, second = (run_kernel(kernel, inputs_of(case), device, **case.options) for _ in range(2))
    judge.bitwise(second, first, case=case.id, kernel=kernel.name)
