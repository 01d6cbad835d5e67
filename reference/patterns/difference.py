"""A difference between an output and what is right, as the patterns see it, and the words that they share."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SHARE = 0.9  # of the wrong elements that have to share a pattern
RARE = 1 / 2000  # a pattern that random places would show more often is none
LISTED = 4  # numbers that are written out


@dataclass(frozen=True, eq=False)
class Difference:
    """`actual` and `expected` are floats of one shape on the CPU; `wrong` marks the elements to explain.

    `ids` [rows, slots]: the experts of each row, below 0 where a slot was dropped. `routes` [rows, slots, columns]
    float64: what each slot should contribute. `operands`: x [rows, K] and weight [columns, K] of a GEMM, whose
    x @ weight.T is the output. `names` are those of a row, a column and the elements.
    """

    actual: Tensor
    expected: Tensor
    wrong: Tensor
    ids: Tensor | None = None
    routes: Tensor | None = None
    operands: tuple[Tensor, Tensor] | None = None
    names: tuple[str, str, str] = ("row", "column", "elements")


def is_rare(sets: int, size: int, total: int, held: int, of: int) -> bool:
    """Whether random places would seldom lie so: `held` of `of` in one of some `sets` of `size` of all `total`."""
    return math.log(sets) + log_chance(size, total, held, of) < math.log(RARE)


def log_chance(size: int, total: int, held: int, of: int) -> float:
    """The logarithm of a bound of the chance that one set of `size` of `total` holds `held` of `of` random places.

    One term for each choice of the places that it holds: C(of, held) * C(size, held) / C(total, held).
    """
    return _log_choices(of, held) + _log_choices(size, held) - _log_choices(total, held)


def _log_choices(of: int, held: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(held + 1) - math.lgamma(of - held + 1)


def most(count: int) -> int:
    """How many of `count` have to share a pattern."""
    return math.ceil(SHARE * count)


def part(held: int, of: int) -> str:
    """How many of how many, in words."""
    return f"all {of}" if held == of else f"{held} of {of}"


def lines(name: str, numbers: list[int], listed: int = LISTED) -> str:
    """Such as "row 7", "rows 3 and 7", or "rows 3, 7, 8, 9, ... (12 in all)" if there are more than `listed`."""
    if len(numbers) == 1:
        return f"{name} {numbers[0]}"
    shown = [str(number) for number in numbers[:listed]]
    if len(numbers) > listed:
        return f"{name}s {', '.join(shown)}, ... ({len(numbers)} in all)"
    return f"{name}s {', '.join(shown[:-1])} and {shown[-1]}"


def sample(numbers: Tensor, count: int) -> Tensor:
    """At most `count` of `numbers`, in order and spread without a period."""
    if len(numbers) <= count:
        return numbers
    golden = (5**0.5 - 1) / 2
    places = (torch.arange(count, dtype=torch.float64) * golden % 1 * len(numbers)).long()
    return numbers[places.unique()]
