"""Promise: which cases a kernel is held to, and by which form."""

from dataclasses import replace

import pytest

from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.kernel import Promise
from nvfp4_suite.contract.shapes import LayerShape

CASE = Case(LayerShape(8, 3, 48, 80), 5)
W4A4 = replace(CASE, format="w4a4")
ATOMICS = replace(CASE, atomics=True)
RANDOM = replace(CASE, inputs="random")


@pytest.mark.parametrize(
    ("promise", "taken"),
    [
        (Promise(), {CASE, ATOMICS, RANDOM}),
        (Promise(formats=("w4a4",), rounding="w4a4"), {W4A4}),
        (Promise(formats=("w4a16", "w4a4")), {CASE, W4A4, ATOMICS, RANDOM}),
        (Promise(dtypes=("fp16",)), set()),
        (Promise(activations=("gelu", "swigluoai")), set()),
        (Promise(rounding="w4a16_atomic"), {ATOMICS, RANDOM}),
        (Promise(formats=("w4a4",), rounding="w4a4_atomic"), set()),
    ],
)
def test_a_kernel_takes_what_it_promises(promise, taken):
    assert {case for case in (CASE, W4A4, ATOMICS, RANDOM) if promise.takes(case)} == taken


@pytest.mark.parametrize("name", ["w4a16", "w4a4"])
def test_atomics_are_held_to_the_bits_of_the_form_without_them(name):
    for rounding in (name, f"{name}_atomic"):
        assert Promise(formats=(name,), rounding=rounding).orderfree_rounding == name
