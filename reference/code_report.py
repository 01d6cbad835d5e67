"""The wrong block scales and codes of a quantized output in words, and how far each is from being right."""

from collections.abc import Callable

import torch
from torch import Tensor

from .chunks import chunked
from .codes import CODE, RANK, Values, Verdict
from .explain import Section, counted, table, worst_places
from .formats import BLOCK, decode_e2m1, decode_e4m3
from .patterns.difference import Difference
from .patterns.table import find

FP32_MAX_BITS = 0x7F7FFFFF


def sections(values: Values, scale: Tensor, codes: Tensor, verdict: Verdict, ids: Tensor | None) -> list[Section]:
    """Counts, the worst of both and their patterns; scales come first, as they explain codes.

    `scale` [R, K/16] and `codes` [R, K/16, 16] are what was judged, `ids` [R, slots] the experts as in Difference.
    """
    counts, tables, found = [], [], []
    if verdict.wrong_scales.any():
        nearest = scale.clamp(verdict.first_scale, verdict.last_scale)
        steps = (scale.int() - nearest.int()).abs()
        counts.append(f"{counted(verdict.wrong_scales)} block scales, by at most {_many(steps.max())}")
        tables.append(("scales", _worst_scales(values, scale, steps, verdict)))
        pair = decode_e4m3(scale), decode_e4m3(nearest)
        found += find(Difference(*pair, verdict.wrong_scales, ids, names=("row", "block", "block scales")))
    if verdict.wrong_codes.any():
        nearest = chunked(_nearest, codes, verdict.first_code, verdict.last_code)
        steps = chunked(_steps, codes, nearest).where(verdict.wrong_codes, 0)
        counts.append(f"{counted(verdict.wrong_codes)} codes, by at most {_many(steps.max())}")
        tables.append(("codes", _worst_codes(values, scale, codes, steps, verdict)))
        pair = decode_e2m1(codes).flatten(1), decode_e2m1(nearest).flatten(1)
        found += find(Difference(*pair, verdict.wrong_codes.flatten(1), ids, names=("row", "column", "codes")))
    return [("wrong", counts), *tables, ("pattern", found)]


def _many(steps: Tensor) -> str:
    return f"{steps} step{'s' * (steps.item() != 1)}"


def _nearest(codes: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """The codes from `first` to `last` in the order of values that are nearest to `codes`."""
    rank, low, high = (RANK[of.int()] for of in (codes, first, last))
    return CODE[rank.clamp(low, high).int()]


def _steps(codes: Tensor, others: Tensor) -> Tensor:
    return (RANK[codes.int()].int() - RANK[others.int()].int()).abs()


def _worst_scales(values: Values, scale: Tensor, steps: Tensor, verdict: Verdict) -> list[str]:
    """What the worst block scales are, what is right, and which amax they would need."""
    places = worst_places(steps, verdict.wrong_scales)
    place = tuple(places.T)
    some, found = values.at(*place), scale[place][:, None]
    above = found > verdict.last_scale[place][:, None]
    limit = _least(lambda amax: some.scale_of(amax) >= found + (~above).to(torch.uint8), found)
    least, most = some.amaxes()
    rows = []
    for i, (row, block) in enumerate(places.tolist()):
        right = _span(_scale, verdict.first_scale[row, block], verdict.last_scale[row, block])
        needs = _needs("amax", limit[i], above[i], most[i] if above[i] else least[i])
        columns = f"[{row}, {block * BLOCK}:{(block + 1) * BLOCK}]"
        rows.append([columns, _scale(found[i]), f"right {right}", f"amax {_ends(least[i], most[i])}", needs])
    return table(rows)


def _worst_codes(values: Values, scale: Tensor, codes: Tensor, steps: Tensor, verdict: Verdict) -> list[str]:
    """What the worst codes are, what is right under the scale that they have, and which x they would need."""
    places = worst_places(steps, verdict.wrong_codes)
    place = tuple(places.T)
    some, under, found = values.at(*place[:2]), scale[place[:2]][:, None], codes[place][:, None]

    def rank_of(x: Tensor) -> Tensor:  # of x [n, 1], one in each block
        return RANK[some.codes_of(x[..., None].expand(-1, -1, BLOCK), under)[..., 0].int()]

    above = RANK[found.int()] > RANK[verdict.last_code[place].int()][:, None]
    limit = _least(lambda x: rank_of(x) >= RANK[found.int()] + (~above).to(torch.uint8), found)
    rows = []
    for i, (row, block, lane) in enumerate(places.tolist()):
        right = _span(_code, verdict.first_code[row, block, lane], verdict.last_code[row, block, lane])
        lower, upper = values.lower[row, block, lane], values.upper[row, block, lane]
        cells = [f"[{row}, {block * BLOCK + lane}]", _code(found[i]), f"right {right}", f"scale {_scale(under[i])}"]
        needs = _needs("x", limit[i], above[i], upper if above[i] else lower)
        rows.append([*cells, f"x {_ends(lower, upper)}", needs])
    return table(rows)


def _least(reaches: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """The least fp32 for which a monotone condition holds, NaN if there is none: found by halving the order of bits."""
    below = torch.full(like.shape, -FP32_MAX_BITS - 1)
    above = torch.full(like.shape, FP32_MAX_BITS + 1)
    for _ in range(33):
        middle = (below + above) // 2
        holds = reaches(_fp32(middle))
        below, above = torch.where(holds, below, middle), torch.where(holds, middle, above)
    return torch.where(above > FP32_MAX_BITS, torch.nan, _fp32(above))


def _fp32(order: Tensor) -> Tensor:
    """The fp32 in the given place, 0 standing for +0 and -1 for the negative one nearest to it."""
    magnitude = order.abs().int().view(torch.float32)
    return torch.where(order < 0, -magnitude, magnitude)


def _needs(name: str, limit: Tensor, above: Tensor, end: Tensor) -> str:
    """What a value would have to be, and how far the nearer end is from that, relative to the larger of the two."""
    if end.isnan():
        return ""
    if limit.isnan():
        return f"no {name} gives it"
    off = (limit - end).abs() / torch.maximum(limit.abs(), end.abs())
    return f"needs {name} {'>=' if above else '<'} {limit.item():.6g}, {100 * off.item():.3g} % off"


def _ends(lower: Tensor, upper: Tensor) -> str:
    if lower.isnan() or lower == upper:
        return f"= {lower.item():.6g}"
    return f"in [{lower.item():.6g}, {upper.item():.6g}]"


def _span(name: Callable[[Tensor], str], first: Tensor, last: Tensor) -> str:
    return name(first) if first == last else f"{name(first)} to {name(last)}"


def _scale(byte: Tensor) -> str:
    return f"0x{byte.item():02X} ({decode_e4m3(byte).item():.4g})"


def _code(code: Tensor) -> str:
    return f"0x{code.item():X} ({decode_e2m1(code).item():.4g})"
