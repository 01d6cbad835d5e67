"""No judge fails a correct kernel: 1,000 outputs of bounded and 1,000 of boundary, each from values of its own."""

import dataclasses
import functools

import pytest
import torch

from nvfp4_suite.contract.case import Case, hashed
from nvfp4_suite.contract.kernel import ACTIVATIONS, FORMATS
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.reference import bounds, judge, quantize
from nvfp4_suite.reference.bounds import Interval

from . import correct_kernel
from .outputs import arguments, inputs_of
from .quantized import global_scale

TOKENS, SEEDS = 6, 63  # of one output, and outputs that share their weights
LAYERS = [
    Case(LayerShape(4, 3, 256, 128), TOKENS * SEEDS, routing, "random", dtype, activation, weight_on_input=on_input)
    for routing, dtype, on_input in (("random", "bf16", False), ("twice", "fp16", True))
    for activation in ACTIVATIONS
]
SUMS = {"shuffled": correct_kernel.shuffled_sums, "cut_off": lambda key: correct_kernel.cut_off_sums(4)}


@functools.cache
def enclosed(case: Case) -> Interval:
    return bounds.enclose(*arguments(inputs_of(case)), **case.options, rounding=case.format)


def outputs(interval: Interval) -> list[Interval]:
    """The interval of each output: TOKENS rows of all that the layer computed."""
    names = ("lower", "upper", "expected", "routes", "topk_ids")
    parts = zip(*(getattr(interval, name).split(TOKENS) for name in names), strict=True)
    return [dataclasses.replace(interval, **dict(zip(names, part, strict=True))) for part in parts]


def pass_one_by_one(actual: torch.Tensor, case: Case, **context):
    for number, (part, expected) in enumerate(zip(actual.split(TOKENS), outputs(enclosed(case)), strict=True)):
        judge.bounded(part, expected, case=case.id, number=number, **context)


@pytest.mark.parametrize("case", LAYERS)
def test_bounded_passes_a_correct_kernel(case):
    for name, sums in SUMS.items():
        actual = correct_kernel.layer(case, inputs_of(case), sums(case.id))
        assert (actual != enclosed(case).expected.to(actual.dtype)).any()  # or nothing would have been tried
        pass_one_by_one(actual, case, sums=name)


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("case", LAYERS[::3])
def test_bounded_passes_errors_as_large_as_they_may_be_that_do_not_agree(case, format_):
    """Every element lies on one end of its enclosure, a hash says on which."""
    case = dataclasses.replace(case, format=format_)
    interval = enclosed(case)
    up = hashed(f"{case.id}/ends", *interval.expected.shape) % 2 == 0
    pass_one_by_one(torch.where(up, interval.upper, interval.lower).to(interval.dtype), case)


def test_there_are_a_thousand_of_them():
    assert len(LAYERS) * len(SUMS) * SEEDS >= 1000


def test_bounded_passes_a_tensor_core_that_cuts_off_a_long_sum():
    """All sums are cut off towards zero, an error that all elements share."""
    case = Case(LayerShape(1, 1, 4096, 32), 8, "random", "random")
    inputs = inputs_of(case)
    actual = correct_kernel.layer(case, inputs, correct_kernel.cut_off_sums(4))
    judge.bounded(actual, bounds.enclose(*arguments(inputs), **case.options))


def sums_at_rounding_boundaries(key: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Exact sums [5, 48], a bound of any fp32 summation's error, and one in a hashed order.

    Each is 1.1 * a multiple of 1/4 up to 6, but for a rounding error: where a block's amax is 6.6, a code's boundary is
    often near.
    """
    goal = (hashed(f"{key}/goal", 5, 48) % 49 - 24).double() / 4
    goal[:, ::16] = 6
    addends = (hashed(f"{key}/addends", 15, 5, 48).double() / 2**31 - 1).float().double()
    addends = torch.cat([addends, (1.1 * goal - addends.sum(0)).float().double()[None]])
    total = torch.zeros(5, 48)
    for place in hashed(f"{key}/order", 16).argsort():
        total = total + addends[place].float()
    return addends.sum(0), 16 * 2.0**-24 * addends.abs().sum(0), total


@pytest.mark.parametrize("recipe", quantize.RECIPES)
def test_boundary_passes_a_correct_kernel(recipe):
    g = global_scale(torch.tensor(6.6), recipe)
    different = 0
    for seed in range(200):
        exact, error, found = sums_at_rounding_boundaries(f"{seed}/{recipe}")
        packed, scale = quantize.quantize(found, g, recipe)
        judge.boundary(packed, scale, exact - error, exact + error, g, recipe=recipe, seed=seed)
        different += not torch.equal(packed, quantize.quantize(exact.float(), g, recipe)[0])
    assert different > 100  # outputs that bit for bit would be wrong
