"""Ranges that are quantized on the way, spreads that are rounded, and routes that are added in any order."""

from itertools import permutations

import pytest
import torch

from nvfp4_suite.reference import bounds, moe
from nvfp4_suite.reference.accumulation import Sums
from nvfp4_suite.reference.quantize import RECIPES
from nvfp4_suite.reference.ranges import Range
from nvfp4_suite.reference.rounding import rounding_form

BF16, FP16, F64 = torch.bfloat16, torch.float16, torch.float64
INPUT_SCALE = torch.tensor(3 / 2688)


def form_of(recipe: str):
    return rounding_form(None, BF16, recipe)


def some_values(seed: int, rows: int = 64, k: int = 64) -> torch.Tensor:
    """Blocks of many sizes, among them zeros, ties and values beyond what the input scale foresees."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, k, generator=generator, dtype=F64)
    x = torch.ldexp(x, torch.randint(-20, 6, (rows, k // 16), generator=generator).repeat_interleave(16, dim=1))
    x[0] = 0
    x[1, 16:] = 0
    x[2] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 8)
    return x.float().double()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_point_becomes_what_the_recipe_makes_of_it(recipe):
    x = some_values(1)
    entered = bounds.enter(Range.point(x), INPUT_SCALE, form_of(recipe))
    expected = moe.enter(x, INPUT_SCALE, form_of(recipe))
    assert torch.equal(entered.lower, expected) and torch.equal(entered.upper, expected)


@pytest.mark.parametrize("width", [2.0**-20, 2.0**-6, 0.5, 3.0])
@pytest.mark.parametrize("recipe", ["vllm", "transformer_engine"])
def test_whatever_lies_in_a_range_is_quantized_into_its_enclosure(recipe, width):
    x = some_values(2)
    radius = width * x.abs()
    radius[3:6] = 2.0**-12  # also around and across zero
    radius[0, 5] = 1.0  # a block of zeros that may be none
    entered = bounds.enter(Range(x - radius, x + radius), INPUT_SCALE, form_of(recipe))
    generator = torch.Generator().manual_seed(5)
    for place in range(40):
        share = torch.rand(x.shape, generator=generator, dtype=F64) if place else torch.zeros(x.shape, dtype=F64)
        share = share.round() if place % 4 == 1 else share  # the ends themselves
        found = moe.enter(x - radius + 2 * radius * share, INPUT_SCALE, form_of(recipe))
        assert ((entered.lower <= found) & (found <= entered.upper)).all()


def test_a_narrow_range_leaves_most_values_certain():
    x = some_values(3)
    radius = 2.0**-20 * x.abs()
    entered = bounds.enter(Range(x - radius, x + radius), INPUT_SCALE, form_of("vllm"))
    assert (entered.lower == entered.upper).double().mean() > 0.99


def test_nan_and_anything_take_their_block_along():
    x = torch.ones(1, 48, dtype=F64)
    lower, upper = x.clone(), x.clone()
    lower[0, 3] = upper[0, 3] = torch.nan
    lower[0, 20], upper[0, 20] = -torch.inf, torch.inf
    entered = bounds.enter(Range(lower, upper), INPUT_SCALE, form_of("vllm"))
    assert entered.lower[0, :16].isnan().all() and entered.upper[0, :16].isnan().all()
    assert (entered.lower[0, 16:32] == -torch.inf).all() and (entered.upper[0, 16:32] == torch.inf).all()
    assert torch.equal(entered.lower[0, 32:], entered.upper[0, 32:])


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("units", [0.1, 1.0, 2.7, 40.0])
def test_what_a_spread_is_rounded_to_lies_in_the_range_and_its_spread(units, dtype):
    """A route of a sum of 1 to 2, spread by a few units of d, times a global of 3 and a weight of 0.7."""
    sums = 1 + torch.rand(8, 64, generator=torch.Generator().manual_seed(9), dtype=F64)
    spread = torch.full_like(sums, units * torch.finfo(dtype).eps)
    alpha, w, form = torch.full((64,), 3.0, dtype=F64), torch.full((8,), 0.7, dtype=F64), rounding_form("w4a16", dtype)
    routes = bounds._down(Sums(Range.point(sums), spread), alpha, w, form)
    for share in (-1.0, -0.6, 0.0, 0.3, 1.0):
        found = form.narrow((sums + share * spread) * 3 * 0.7)
        assert (routes.range.lower - routes.spread <= found).all() and (
            found <= routes.range.upper + routes.spread
        ).all()
    assert (routes.spread > 0).any() == (units > 1)  # a spread of less than a unit joins the range
    slack = 1.01 * torch.finfo(dtype).eps * 4.2
    assert (routes.range.upper + routes.spread - (sums + spread) * 2.1 <= slack).all()


def test_spreads_of_one_expert_add_up_and_those_of_two_are_independent():
    routes, spread, form = torch.zeros(2, 2, 1, dtype=F64), torch.ones(2, 2, 1, dtype=F64), rounding_form(None, BF16)
    total = bounds._combine(Range.point(routes), spread, torch.tensor([[3, 3], [3, 1]]), form)
    assert total.upper.flatten().tolist() == [2.0, 2**0.5]


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_atomics_may_add_in_any_order(dtype):
    form = rounding_form("w4a4_atomic", dtype)
    routes = torch.randn(4, 5, 64, generator=torch.Generator().manual_seed(1), dtype=F64).to(dtype).double()
    routes[0] *= 1000.0
    routes[1, 2] *= 2.0**9
    total = bounds._combine(Range.point(routes), torch.zeros_like(routes), torch.arange(5).expand(4, 5), form)
    in_slot_order, others = moe.combine(routes, form), 0
    for order in permutations(range(5)):
        found = moe.combine(routes[:, list(order)], form)
        assert ((total.lower <= found) & (found <= total.upper)).all()
        others += int((found != in_slot_order).any())
    assert others > 50  # the order does matter
    unit = torch.finfo(dtype).eps / 2
    assert (total.upper - total.lower <= 2 * (4.1 + 1) * unit * routes.abs().sum(1)).all()  # 4 additions, and the last


def test_atomics_that_may_overflow_on_the_way_allow_anything():
    routes = torch.tensor([[[60000.0], [-60000.0], [60000.0], [-60000.0]], [[1.0], [2.0], [3.0], [4.0]]], dtype=F64)
    form, ids = rounding_form("w4a4_atomic", FP16), torch.arange(4).expand(2, 4)
    total = bounds._combine(Range.point(routes), torch.zeros_like(routes), ids, form)
    assert total.lower[0].item() == -torch.inf and total.upper[0].item() == torch.inf
    assert total.upper[1].isfinite()
