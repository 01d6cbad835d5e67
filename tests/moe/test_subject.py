"""Which kernel is tested on which cases."""

from unittest.mock import patch

import pytest

from nvfp4_suite.cases.layers import ATOMICS, ORDERFREE, RANDOM, W4A4, W4A16
from nvfp4_suite.contract.kernel import Promise
from nvfp4_suite.kernels.registry import KERNELS, PlannedKernel

from .subject import taken


def pairs(cases, **promises: Promise) -> set[tuple[str, str]]:
    """The (case, kernel) that are tested where just these kernels are registered."""
    kernels = {name: PlannedKernel(name, promise) for name, promise in promises.items()}
    with patch.dict(KERNELS, kernels, clear=True):  # which keeps their order, unlike monkeypatch.delitem
        return {(case.id, kernel.name) for case, kernel in (parameters.values for parameters in taken(cases))}


def named(name: str, *tables) -> set[tuple[str, str]]:
    return {(case.id, name) for table in tables for case in table}


def test_a_kernel_is_tested_on_the_cases_of_its_format():
    w4a4 = Promise(formats=("w4a4",), rounding="w4a4")
    expected = named("a", W4A16, (case for case in ATOMICS if case.format == "w4a16"))
    expected |= named("b", W4A4, (case for case in ATOMICS if case.format == "w4a4"))
    assert pairs(ORDERFREE, a=Promise(), b=w4a4) == expected


def test_a_kernel_that_adds_by_atomics_is_tested_where_no_addition_rounds_and_within_bounds():
    cases = [case for case in (*ATOMICS, *RANDOM) if case.format == "w4a16"]
    atomic = Promise(rounding="w4a16_atomic")
    assert pairs((*ORDERFREE, *RANDOM), a=atomic) == named("a", cases)


def test_a_kernel_that_takes_no_case_is_an_error():
    """Also beside another that takes them all."""
    with pytest.raises(ValueError, match=r"^b takes none of \d+ cases, but should be tested: Promise\(formats=\("):
        pairs(W4A16, a=Promise(), b=Promise(formats=("w4a4",), rounding="w4a4"))
