"""The factor of every part of an output is measured exactly and allowed exactly as far as the formula says."""

import dataclasses

import pytest
import torch

from nvfp4_suite.contract.case import hashed
from nvfp4_suite.reference import chunks, judge, projections
from nvfp4_suite.reference.bounds import Interval

from .outputs import F64, INF, LAYER, NAN, enclosed, verdict
from .quantized import around, quantized, values

IDS = hashed("ids", 24, 6).argsort(1)[:, :3]
IDS[5] = torch.tensor([2, 4, 2])  # an expert twice
IDS[6, 1] = -1


def spread(key: str, *shape: int) -> torch.Tensor:
    """Float64 numbers between -1 and 1."""
    return hashed(key, *shape).double() / 2**31 - 1


ROUTES = spread("routes", 24, 3, 64).masked_fill((IDS < 0)[..., None], 0)
EXPECTED = ROUTES.sum(1)
DISTANCE = 0.02 * (1 + spread("distance", 24, 64))
INTERVAL = Interval(EXPECTED - DISTANCE, EXPECTED + DISTANCE / 2, EXPECTED, F64, ROUTES, IDS)


def only(dim: int, index: int) -> torch.Tensor:
    """EXPECTED, but 0 outside of one row or column."""
    kept = torch.zeros_like(EXPECTED)
    place = (index,) if dim == 0 else (slice(None), index)
    kept[place] = EXPECTED[place]
    return kept


PARTS = {
    "the whole": EXPECTED,
    "row 7": only(0, 7),
    "column 63": only(1, 63),
    "slot 1": ROUTES[:, 1],
    "expert 2": (ROUTES * (IDS == 2)[..., None]).sum(1),
    "expert 4": (ROUTES * (IDS == 4)[..., None]).sum(1),
}


def allowed(c: torch.Tensor) -> float:
    energy = c.square().sum()
    common = ((EXPECTED * c).sum() / energy).abs().clamp(min=1)
    return (6 * (DISTANCE * c).square().sum().sqrt() / energy + common / 512).item()


def scaled(c: torch.Tensor, factor: float) -> list[str]:
    actual = EXPECTED + (factor - 1) * c
    return projections.scaled_parts(actual, INTERVAL.lower, INTERVAL.upper, EXPECTED, ROUTES, IDS)


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_part_may_be_scaled_by_what_the_formula_allows_and_no_more(name, sign):
    c = PARTS[name]
    limit = allowed(c)
    assert not [line for line in scaled(c, 1 + 0.999 * sign * limit) if line.startswith(name)]
    factor = 1 + 1.001 * sign * limit
    (line,) = (line for line in scaled(c, factor) if line.startswith(name))
    assert f"by {factor:.4f}" in line and f"allowed 1 +- {limit:.4f}" in line


@pytest.mark.parametrize(("place", "value"), [("lower", -INF), ("upper", INF), ("actual", INF), ("actual", NAN)])
def test_what_is_not_finite_neither_counts_nor_hides_the_rest(place, value):
    tensors = {"lower": INTERVAL.lower.clone(), "upper": INTERVAL.upper.clone(), "actual": EXPECTED * 1.1}
    tensors[place][5, 9] = value
    found = projections.scaled_parts(**tensors, expected=EXPECTED, routes=ROUTES, ids=IDS)
    assert found[0].startswith("the whole ") and "by 1.1000" in found[0]
    assert "by 1.1000" in found[1] and "worst of 24 among 24 rows" in found[1]


@pytest.mark.parametrize("judge_text", ["bounded", "boundary"])
def test_a_large_output_is_judged_in_chunks_with_the_same_result(monkeypatch, judge_text):
    """What is right, too: both texts show all numbers of the whole."""
    x = values(40, 64)
    packed, scale, g = quantized(x)
    packed[3:30, 5] ^= 1
    scale[35] += 2
    interval = enclosed(dataclasses.replace(LAYER, routing="twice"))
    actual = (interval.expected + 0.1 * interval.routes[:, 2]).to(interval.dtype)

    def text() -> str:
        if judge_text == "bounded":
            return verdict(judge.bounded, actual, interval)
        return verdict(judge.boundary, packed, scale, *around(x, 1e-3), g.expand(40))

    at_once = text()
    monkeypatch.setattr(chunks, "ELEMENTS", 700)
    assert text() == at_once


def test_equal_tokens_count_once():
    """Their errors are equal: 200 copies of a token that is off within its enclosure prove nothing more than one."""
    generator = torch.Generator().manual_seed(4)
    expected = torch.randn(1, 64, generator=generator, dtype=torch.float64)
    error = 0.02 * torch.randn(1, 64, generator=generator, dtype=torch.float64).sign()
    copies = expected.expand(200, 64)
    one, many = (projections.scaled_parts(e + error, e - 0.02, e + 0.02, e, None, None) for e in (expected, copies))
    assert one == many == []
    others = copies + torch.linspace(0, 1e-3, 200, dtype=torch.float64)[:, None]
    assert projections.scaled_parts(others + error, others - 0.02, others + 0.02, others, None, None) != []
