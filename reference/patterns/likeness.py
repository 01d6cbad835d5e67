"""What the wrong elements hold instead: zeros or NaN, other rows, a multiple, or too much or little of one slot."""

import math
from collections import Counter

import torch
from torch import Tensor

from .difference import Difference, lines, most, part, sample

LOOKED_AT = 32  # wrong rows or columns that are compared with all others
ENOUGH = 2**19  # elements whose factors are looked at
LEAST = 8  # elements that a row, a column or an element-wise likeness needs to be recognized
SAME = 2.0**-6  # of a row's norm: above any rounding to 16 bits, far below what two different rows are apart
LEFT = 0.25  # of a difference: what an explanation may leave of it


def blank(d: Difference) -> list[str]:
    """Rows or columns of nothing but zeros, or of NaN (which is what poisoned buffers hold), or such elements."""
    for value, same in (("zero", d.actual == 0), ("NaN", d.actual.isnan())):
        if same.all():
            return [f"the whole output is {value}"]
        for name, dim in zip(d.names, (1, 0), strict=False):
            blanks = (same.all(dim) & d.wrong.any(dim)).nonzero().flatten().tolist()
            if blanks:
                return [f"{lines(name, blanks)} {'is' if len(blanks) == 1 else 'are'} {value} throughout"]
        held, count = int((same & d.wrong).count_nonzero()), int(d.wrong.count_nonzero())
        if held >= max(LEAST, most(count)):
            return [f"{part(held, count)} wrong {d.names[2]} are {value}"]
    return []


def moved(d: Difference) -> list[str]:
    """Rows that hold what other rows should hold, swapped or shifted; else columns that do."""
    rows = _moved_lines(d.names[0], d.actual, d.expected, d.wrong)
    return rows or _moved_lines(d.names[1], d.actual.T, d.expected.T, d.wrong.T)


def _moved_lines(name: str, actual: Tensor, expected: Tensor, wrong: Tensor) -> list[str]:
    if actual.shape[1] < LEAST:
        return []
    looked_at = sample(wrong.any(1).nonzero().flatten(), LOOKED_AT)
    origin = _origins(actual[looked_at], expected, looked_at)
    source = {i: j for i, j in zip(looked_at.tolist(), origin.tolist(), strict=True) if j >= 0}
    if len(source) < 3 or len(source) < most(len(looked_at)):
        return _swaps(name, source)
    step, shifted = Counter(j - i for i, j in source.items()).most_common(1)[0]
    if shifted >= most(len(looked_at)):
        other, share = f"i {'-' if step < 0 else '+'} {abs(step)}", part(shifted, len(looked_at))
        return [f"{name}s are shifted: {name} i holds what {name} {other} should hold, in {share} wrong {name}s"]
    if all(j == i ^ 1 for i, j in source.items()):
        share = part(len(source), len(looked_at))
        return [f"{name}s 0 and 1, 2 and 3, and so on are swapped, in {share} wrong {name}s"]
    return _swaps(name, source)


def _origins(actual: Tensor, expected: Tensor, own: Tensor) -> Tensor:
    """Of each row of `actual`, which other row of `expected` it equals but for rounding, or -1."""
    a, e = (x.double().nan_to_num(0, 0, 0) for x in (actual, expected))
    size = e.square().sum(1)
    distance = a.square().sum(1, keepdim=True) + size - 2 * a @ e.T
    nearest = distance.argmin(1)
    near = distance.gather(1, nearest[:, None])[:, 0] <= SAME**2 * size[nearest]
    known = near & (size[nearest] > 0) & actual.isfinite().all(1) & (nearest != own)
    return torch.where(known, nearest, -1)


def _swaps(name: str, source: dict[int, int]) -> list[str]:
    found = []
    for i, j in source.items():
        if source.get(j) != i:
            found.append(f"{name} {i} holds what {name} {j} should hold")
        elif i < j:
            found.append(f"{name} {i} holds what {name} {j} should hold, and the other way round")
    more = [f"... and {len(found) - 3} more such {name}s"] if len(found) > 3 else []
    return found[:3] + more


def multiple(d: Difference) -> list[str]:
    """One factor between the actual and the expected, or else one for each row or each column."""
    wrong_rows = d.wrong.any(1).nonzero().flatten()
    rows = sample(wrong_rows, max(LOOKED_AT, ENOUGH // d.wrong.shape[1]))
    a, e, wrong = d.actual[rows].double(), d.expected[rows].double(), d.wrong[rows]
    finite, count = a.isfinite() & e.isfinite(), int(wrong.count_nonzero())
    a, e, among = a.where(finite, 0), e.where(finite, 0), wrong & finite & (e != 0)
    if among.count_nonzero() < max(LEAST, most(count)):
        return []
    rounding, looked_at = torch.finfo(d.actual.dtype).eps, " looked at" if len(rows) < len(wrong_rows) else ""
    for factor in (_best_factor(a, e, (0, 1)), (a[among] / e[among]).median()):
        held = _explained(a, e, among, factor, rounding)
        if held >= most(count):
            return [f"{_times(factor.item())} in {part(held, count)} wrong {d.names[2]}{looked_at}"]
    for name, dim in zip(d.names, (1, 0), strict=False):
        long = among & (among.float().sum(dim, keepdim=True) >= LEAST)
        factors = _best_factor(a.where(long, 0), e.where(long, 0), dim)
        if long.any(dim).count_nonzero() > 1 and _explained(a, e, long, factors, rounding) >= most(count):
            low, high = factors.nan_to_num(torch.inf).min(), factors.nan_to_num(-torch.inf).max()
            return [f"each {name}{looked_at} is multiplied by a factor of its own, {low:.3g} to {high:.3g}"]
    return []


def _best_factor(a: Tensor, e: Tensor, dim: int | tuple[int, int]) -> Tensor:
    """The factor of `e` that comes nearest to `a`, by least squares along `dim`; NaN where e is 0."""
    return (a * e).sum(dim, keepdim=True) / e.square().sum(dim, keepdim=True)


def _explained(a: Tensor, e: Tensor, among: Tensor, factor: Tensor, rounding: float) -> int:
    """How many elements of `among` are `factor` times what they should be, but for rounding and a part of the change.

    `rounding` is the dtype's eps: a smaller change is not told from rounding, and explains nothing.
    """
    change = (factor - 1).abs()
    near = (a - factor * e).abs() <= LEFT * change * e.abs() + rounding / 2 * a.abs()
    return int((among & (factor != 0) & (change > rounding) & near).count_nonzero())


def _times(factor: float) -> str:
    if abs(factor + 1) < SAME:
        return "the sign is flipped"
    power, sign = round(math.log2(abs(factor))), "-" if factor < 0 else ""
    if power and abs(abs(factor) / 2.0**power - 1) < 2.0**-8:
        return f"actual = {sign}2^{power} x expected"
    return f"actual = {factor:.4g} x expected"


def slot(d: Difference) -> list[str]:
    """The slot or expert whose contribution is missing, doubled or scaled in (nearly) all wrong rows."""
    if d.routes is None or d.routes.shape[1] < 2:
        return []
    rows = sample(d.wrong.any(1).nonzero().flatten(), LOOKED_AT)
    error, route = (d.actual[rows].double() - d.expected[rows].double())[:, None], d.routes[rows]
    explained = _explained_by(error, route)
    best, which = explained.max(1, keepdim=True)
    scaled = _explained_by(error, d.expected[rows, None].double())  # the row as a whole would do as well
    sure = ((best >= 1 - LEFT) & (1 - best <= LEFT * (1 - scaled)))[:, 0]
    if sure.sum() < max(1, most(len(rows))):
        return []
    overlap, energy = (error * route).sum(2), route.square().sum(2)
    factors = 1 + (overlap / energy).gather(1, which)[sure, 0]
    slots, experts = which[sure, 0].unique().tolist(), d.ids[rows].gather(1, which)[sure, 0].unique().tolist()
    where = "the wrong row" if len(rows) == 1 else f"{part(int(sure.sum()), len(rows))} wrong rows"
    return [f"the contribution of {_whose(slots, experts)} {_dose(factors)}, in {where}"]


def _explained_by(error: Tensor, route: Tensor) -> Tensor:
    """cos^2 of the angle between `error` [R, 1, H] and each `route` [R, slots, H], which has no angle if it is 0."""
    overlap = (error * route).sum(2).square() / route.square().sum(2) / error.square().sum(2)
    return overlap.nan_to_num(0, 0, 0)


def _whose(slots: list[int], experts: list[int]) -> str:
    names = [lines(name, found) for name, found in (("slot", slots), ("expert", experts)) if len(found) == 1]
    return " = ".join(names) or "one slot each"


def _dose(factors: Tensor) -> str:
    low, high = factors.min().item(), factors.max().item()
    for dose, text in ((0, "is missing"), (2, "counts twice")):
        if abs(low - dose) < SAME and abs(high - dose) < SAME:
            return text
    return f"is multiplied by {low:.3g}" + (f" to {high:.3g}" if high - low > SAME else "")
