"""Interval arithmetic: products and sums of ranges, with infinities and NaN."""

import math

import pytest
import torch

from nvfp4_suite.reference.ranges import Range

INF, NAN = math.inf, math.nan


def scalar(lower: float, upper: float) -> Range:
    return Range(torch.tensor([lower], dtype=torch.float64), torch.tensor([upper], dtype=torch.float64))


@pytest.mark.parametrize(
    ("a", "b", "ends"),
    [
        ((-2, 3), (-5, 7), (-15, 21)),
        ((-2, -1), (3, 3), (-6, -3)),
        ((INF, INF), (0, 0), (NAN, NAN)),
        ((INF, INF), (0, 1), (-INF, INF)),
        ((5, INF), (2, 2), (10, INF)),
        ((-INF, INF), (0, 0), (-INF, INF)),
        ((NAN, NAN), (0, 1), (NAN, NAN)),
        ((-INF, INF), (NAN, NAN), (NAN, NAN)),
    ],
)
def test_products_of_intervals(a, b, ends):
    for x, y in ((a, b), (b, a)):
        product = scalar(*x) * scalar(*y)
        assert [product.lower.item(), product.upper.item()] == pytest.approx(ends, nan_ok=True)


@pytest.mark.parametrize(
    ("a", "b", "ends"),
    [
        ((1, 2), (-5, 7), (-4, 9)),
        ((INF, INF), (-INF, -INF), (NAN, NAN)),
        ((-INF, INF), (INF, INF), (-INF, INF)),
        ((-INF, INF), (NAN, NAN), (NAN, NAN)),
    ],
)
def test_sums_of_intervals(a, b, ends):
    for x, y in ((a, b), (b, a)):
        total = scalar(*x) + scalar(*y)
        assert [total.lower.item(), total.upper.item()] == pytest.approx(ends, nan_ok=True)
