"""Whether parts of an output are scaled: the error is projected on what rows, columns, slots and experts should give.

An enclosure has room for errors that agree with each other, although those of a right kernel do not. So for each part c
of the expected output (the whole, a row, a column, what one slot or one expert contributes) <error, c> / <c, c>, the
factor less 1, may be at most

    6 * sqrt(sum (d * c)^2) / <c, c>  +  2^-9 * max(1, |<expected, c>| / <c, c>)

where d is an element's distance from the expected to the farther end. The first term takes the errors of elements for
independent and of mean 0, each at most d (most stay far below d, which adds up worst cases): Hoeffding's inequality
then leaves 6 with a probability below 2 * exp(-18). The second term is for what elements may share, a factor of c or
of the whole output: a tensor core that cuts off half a unit of the final sum for each product and each step takes
0.75 * K * 2^-23 of it, 2^-11 at K = 5120.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .accumulation import DEVIATIONS
from .chunks import chunks
from .explain import table

SHARED_ERROR = 2.0**-9
WHOLE = "the whole"


def scaled_parts(
    actual: Tensor, lower: Tensor, upper: Tensor, expected: Tensor, routes: Tensor | None, ids: Tensor | None
) -> list[str]:
    """For each kind of part a line with the worst, if its factor is too far from 1.

    `actual`, `lower`, `upper` and `expected` are [T, H]; with `routes` [T, slots, H] and `ids` [T, slots] (below 0: the
    slot was dropped) also slots and experts count. Elements that are not finite do not count.
    """
    parts = _parts(actual, lower, upper, expected, routes, ids)
    return table([cells for name, sums in parts.items() for cells in _worst(name, sums)])


def _parts(actual, lower, upper, expected, routes, ids) -> dict[str, Tensor]:
    """The sums [parts, 4] of every part, by the kind of part; see _sums."""
    rows, columns, slots, experts = [], [], [], []
    new = _first_of_equals(expected)
    for output in chunks(actual, lower, upper, expected, new, *(() if routes is None else (routes, ids))):
        errors, first = _Errors.of(*output[:4]), output[4]
        rows.append(_sums(errors.expected, errors, dim=1))
        columns.append(_sums(errors.expected * first[:, None], errors, dim=0))
        if routes is not None:
            counts, errors = (errors.counts & first[:, None])[:, None], errors.for_slots()
            contributions, named = output[5].where(counts, 0), output[6]
            each = _sums(contributions, errors, dim=2)
            slots.append(each.sum(0))
            experts.append(_sums(_merged(contributions, named), errors, dim=2) if _repeats(named) else each)
    columns = torch.stack(columns).sum(0)
    parts = {WHOLE: columns.sum(0, keepdim=True), "row": torch.cat(rows), "column": columns}
    if routes is not None and ids.numel():
        of_experts = columns.new_zeros(int(ids.max()) + 1, 4)
        parts["slot"] = torch.stack(slots).sum(0)
        parts["expert"] = of_experts.index_add(0, ids.clamp(min=0).flatten(), torch.cat(experts).flatten(0, 1))
    return parts


def _first_of_equals(expected: Tensor) -> Tensor:
    """[T]: whether a row is the first of its kind. Equal tokens have equal errors, so only one of them may count."""
    odd = 2 * torch.arange(expected.shape[1]) + 1
    keys = (expected.contiguous().view(torch.int64) * odd * 0x1E3779B97F4A7C15).sum(1)  # wraps around
    _, kind = keys.unique(return_inverse=True)
    place = torch.arange(len(keys))
    return torch.full_like(keys, len(keys)).scatter_reduce(0, kind, place, "amin")[kind] == place


@dataclass(frozen=True, eq=False)
class _Errors:
    """`error`, `distance` (d) and `expected` of some rows, 0 where one of them is not finite and does not count."""

    error: Tensor
    distance: Tensor
    expected: Tensor
    counts: Tensor

    @classmethod
    def of(cls, actual: Tensor, lower: Tensor, upper: Tensor, expected: Tensor) -> "_Errors":
        error, distance = actual.double() - expected, torch.maximum(upper - expected, expected - lower)
        counts = error.isfinite() & distance.isfinite()
        return cls(error.where(counts, 0), distance.where(counts, 0), expected.where(counts, 0), counts)

    def for_slots(self) -> "_Errors":
        """The same with a dimension for the slots."""
        return _Errors(self.error[:, None], self.distance[:, None], self.expected[:, None], self.counts[:, None])


def _sums(c: Tensor, errors: _Errors, dim: int) -> Tensor:
    """<c, c>, <error, c>, sum (d * c)^2 and <expected, c> along `dim`, in a new last dimension."""
    products = (c * c, errors.error * c, (errors.distance * c).square(), errors.expected * c)
    return torch.stack([product.sum(dim) for product in products], dim=-1)


def _repeats(ids: Tensor) -> bool:
    """Whether some token names an expert twice, or drops two slots."""
    ordered = ids.sort(dim=1).values
    return bool((ordered[:, 1:] == ordered[:, :-1]).any())


def _merged(contributions: Tensor, ids: Tensor) -> Tensor:
    """[T, slots, H]: what each token gets from one expert stands in the first of its slots that name the expert."""
    first = (ids[:, :, None] == ids[:, None, :]).int().argmax(2)
    return torch.zeros_like(contributions).scatter_add(1, first[..., None].expand_as(contributions), contributions)


def _worst(name: str, sums: Tensor) -> list[list[str]]:
    """The cells of a line on the worst of some parts, or no line."""
    energy, overlap, spread, common = sums.unbind(1)
    factor = overlap / energy
    allowed = DEVIATIONS * spread.sqrt() / energy + SHARED_ERROR * (common.abs() / energy).clamp(min=1)
    excess = (factor.abs() / allowed).nan_to_num(0)  # a part of zeros has no factor
    if not (excess > 1).any():
        return []
    i = int(excess.argmax())
    cells = [f"{name} {i}", f"by {round(1 + factor[i].item(), 4) + 0.0:.4f}", f"allowed 1 +- {allowed[i]:.4f}"]
    if name == WHOLE:
        return [[WHOLE, *cells[1:], ""]]
    return [[*cells, f"worst of {(excess > 1).sum()} among {(energy > 0).sum()} {name}s"]]
