"""Sums as a tensor core may form them are enclosed: the worst in any order, the likely where the order is blind."""

import math

import pytest
import torch

from nvfp4_suite.reference.accumulation import likely_sums, worst_sums
from nvfp4_suite.reference.ranges import Range

from .simulated import orders, tensor_core_sums

F64 = torch.float64


def sums_of(x: torch.Tensor, weight: torch.Tensor, tiny=2.0**-126) -> Range:
    return worst_sums(Range.point(x), weight, tiny).range


@pytest.mark.parametrize("step", [4, 8, 16])
@pytest.mark.parametrize("spread", [0, 8, 20])
def test_sums_of_products_of_any_size_are_enclosed(spread, step):
    """Positive products first, so that partial sums are as large as they can be, then the negative ones."""
    generator = torch.Generator().manual_seed(spread)
    x = torch.randn(4, 256, generator=generator).bfloat16().double()
    x = torch.ldexp(x, torch.randint(-spread, spread + 1, x.shape, generator=generator))
    weight = torch.randn(8, 256, generator=generator).bfloat16().double().sort(dim=1, descending=True).values
    x = x.abs()
    total = sums_of(x, weight)
    cut = tensor_core_sums(x, weight, torch.arange(256), step, -126)
    assert (cut != x @ weight.T).any()
    assert ((total.lower <= cut) & (cut <= total.upper)).all()


def test_nearly_the_worst_case_is_enclosed():
    """One product of 1, and 255 just below the last bit of a partial sum: all of them are lost."""
    x, weight = torch.ones(1, 256, dtype=F64), torch.tensor([[1.0] + [(2 - 2**-7) * 2.0**-24] * 255], dtype=F64)
    cut = tensor_core_sums(x, weight, torch.arange(256), 4, -126)
    assert cut.item() == 1.0
    total = sums_of(x, weight)
    assert total.lower.item() < cut.item()
    assert (x @ weight.T).item() - cut.item() > 0.4 * ((x @ weight.T).item() - total.lower.item())


def test_subnormal_activations_that_are_aligned_as_if_normal_are_enclosed():
    """2^-24 * 2688 is aligned by 2^-14 * 2048 and cuts the others off above their last bits."""
    x = torch.tensor([[2.0**-24] + [(1 + 2**-10) * 2.0**-14] * 3], dtype=F64)
    weight = torch.tensor([[2688.0] + [2**-10 * 1.5] * 3], dtype=F64)
    cut = tensor_core_sums(x, weight, torch.arange(4), 4, -14)
    exact = x @ weight.T
    assert (exact - cut).abs().item() > 8 * 2.0**-23 * exact.item()
    total = sums_of(x, weight, tiny=2.0**-14)
    assert (total.lower <= cut).item()


def test_a_sum_of_zeros_is_exactly_zero():
    total = sums_of(torch.zeros(2, 16, dtype=F64), torch.ones(3, 16, dtype=F64))
    assert torch.equal(total.lower, torch.zeros(2, 3, dtype=F64))
    assert torch.equal(total.upper, torch.zeros(2, 3, dtype=F64))


def test_uncertain_terms_widen_a_sum_by_what_they_may_add():
    x = Range(torch.tensor([[1.0, 2.0]], dtype=F64), torch.tensor([[1.0, 4.0]], dtype=F64))
    total = worst_sums(x, torch.tensor([[1.0, -3.0]], dtype=F64), 2.0**-126).range
    assert total.lower.item() == pytest.approx(-11, abs=1e-4)
    assert total.upper.item() == pytest.approx(-5, abs=1e-4)
    assert total.lower.item() < -11 < -5 < total.upper.item()


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("lower", "upper", "weight", "ends"),
    [
        ([INF, 1.0], [INF, 1.0], [1.0, 1.0], (INF, INF)),
        ([INF, -INF], [INF, -INF], [1.0, 1.0], (NAN, NAN)),
        ([INF, 1.0], [INF, 1.0], [0.0, 1.0], (NAN, NAN)),
        ([NAN, 1.0], [NAN, 1.0], [1.0, 1.0], (NAN, NAN)),
        ([65504.0, 1.0], [INF, 1.0], [1.0, 1.0], (-INF, INF)),
        ([INF, 65504.0], [INF, INF], [1.0, -1.0], (-INF, INF)),
        ([-INF, NAN], [INF, NAN], [1.0, 1.0], (NAN, NAN)),
        ([2.0**127, 2.0**127], [2.0**127, 2.0**127], [1.0, 1.0], (-INF, INF)),
        ([2.0**127, 2.0**127, 1.0], [2.0**127, 2.0**127, 1.0], [1.0, 1.0, -1.0], (-INF, INF)),
    ],
)
def test_infinities_and_nans_in_sums(lower, upper, weight, ends):
    x = Range(torch.tensor([lower], dtype=F64), torch.tensor([upper], dtype=F64))
    total = worst_sums(x, torch.tensor([weight], dtype=F64), 2.0**-126).range
    assert [total.lower.item(), total.upper.item()] == pytest.approx(ends, nan_ok=True)


# ---- the likely


def likely_of(x: torch.Tensor, weight: torch.Tensor) -> Range:
    return likely_sums(Range.point(x), weight, 2.0**-126).range


def bell(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16().double()


KINDS = {
    "normal": bell(1, 4, 1024),
    "all positive": bell(1, 4, 1024).abs(),
    "sorted": bell(1, 4, 1024).sort(dim=1).values,
    "one channel 1000 times the others": bell(1, 4, 1024) * (1 + 999 * (torch.arange(1024) == 7)),
    "sixteen binades": torch.ldexp(bell(1, 4, 1024), torch.arange(1024) % 16 - 12),
}


@pytest.mark.parametrize("step", [8, 16])
@pytest.mark.parametrize("x", KINDS.values(), ids=KINDS.keys())
def test_likely_sums_hold_a_tensor_core_that_adds_in_an_order_blind_to_the_values(x, step):
    weight, half = bell(2, 8, 1024), 4 * 2.0**-23
    likely, worst = likely_of(x, weight), sums_of(x, weight)
    for order in orders(1024).values():
        cut = tensor_core_sums(x, weight, order, step, -126)
        assert ((likely.lower <= cut) & (cut <= likely.upper)).all()
        assert (cut - x @ weight.T).abs().max() > half  # it does round
    assert ((likely.upper - likely.lower) < 0.2 * (worst.upper - worst.lower)).all()


def test_uncertain_terms_spread_by_the_root_of_their_squares():
    x = Range(torch.zeros(1, 400, dtype=F64), torch.full((1, 400), 2.0, dtype=F64))
    sums = likely_sums(x, torch.ones(1, 400, dtype=F64), 2.0**-126)
    assert sums.spread.item() == pytest.approx(6 * 20)  # worst: 400
    assert sums.range.lower.item() == pytest.approx(400, rel=1e-3)
    assert worst_sums(x, torch.ones(1, 400, dtype=F64), 2.0**-126).range.lower.item() == pytest.approx(0, abs=0.1)


def test_random_signs_stay_within_the_spread():
    """What Hoeffding's inequality says, drawn: no sum of 400 terms of +-1 leaves 6 standard deviations."""
    signs = torch.randint(0, 2, (100_000, 400), generator=torch.Generator().manual_seed(3)) * 2 - 1
    assert 4 * 20 < signs.sum(1).abs().max().item() < 6 * 20
