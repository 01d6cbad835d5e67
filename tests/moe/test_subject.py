"""Which kernel is tested on which cases."""

import pytest

from nvfp4_suite.cases.layers import ATOMICS, ORDERFREE, RANDOM, W4A4, W4A16
from nvfp4_suite.contract.kernel import Promise
from nvfp4_suite.kernels.registry import KERNELS, PlannedKernel

from .subject import taken


def pairs(monkeypatch, cases, **promises: Promise) -> set[tuple[str, str]]:
    """The (case, kernel) that are tested where just these kernels are registered."""
    for name in list(KERNELS):
        monkeypatch.delitem(KERNELS, name)
    for name, promise in promises.items():
        monkeypatch.setitem(KERNELS, name, PlannedKernel(name, promise))
    return {(case.id, kernel.name) for case, kernel in (parameters.values for parameters in taken(cases))}


def named(name: str, *tables) -> set[tuple[str, str]]:
    return {(case.id, name) for table in tables for case in table}


def test_a_kernel_is_tested_on_the_cases_of_its_format(monkeypatch):
    w4a4 = Promise(formats=("w4a4",), rounding="w4a4")
    expected = named("a", W4A16, (case for case in ATOMICS if case.format == "w4a16"))
    expected |= named("b", W4A4, (case for case in ATOMICS if case.format == "w4a4"))
    assert pairs(monkeypatch, ORDERFREE, a=Promise(), b=w4a4) == expected


def test_a_kernel_that_adds_by_atomics_is_tested_where_no_addition_rounds_and_within_bounds(monkeypatch):
    cases = [case for case in (*ATOMICS, *RANDOM) if case.format == "w4a16"]
    atomic = Promise(rounding="w4a16_atomic")
    assert pairs(monkeypatch, (*ORDERFREE, *RANDOM), a=atomic) == named("a", cases)


def test_a_kernel_that_takes_no_case_is_an_error(monkeypatch):
    """Also beside another that takes them all."""
    with pytest.raises(ValueError, match=r"^b takes none of \d+ cases, but should be tested: Promise\(formats=\("):
        pairs(monkeypatch, W4A16, a=Promise(), b=Promise(formats=("w4a4",), rounding="w4a4"))
