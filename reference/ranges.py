"""Interval arithmetic on tensors, with rules for infinities and NaN that fit floating-point overflow."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Range:
    """float64 intervals, element by element. NaN in both ends is NaN for certain; [-inf, inf] is anything, also NaN."""

    lower: Tensor
    upper: Tensor

    @staticmethod
    def point(x: Tensor) -> "Range":
        return Range(x, x.clone())

    @property
    def certain(self) -> Tensor:
        return (self.lower == self.upper) | self.lower.isnan()

    def map(self, monotone: Callable[[Tensor], Tensor]) -> "Range":
        return Range(monotone(self.lower), monotone(self.upper))

    def widened(self, by: Tensor) -> "Range":
        """Both ends `by` farther out."""
        return Range(self.lower - by, self.upper + by)

    def with_anything(self, where: Tensor) -> "Range":
        """Anything, where `where` says so."""
        return Range(self.lower.masked_fill(where, -torch.inf), self.upper.masked_fill(where, torch.inf))

    def within(self, other: "Range") -> "Range":
        """The part that both hold; their ends are NaN in the same places."""
        return Range(torch.maximum(self.lower, other.lower), torch.minimum(self.upper, other.upper))

    def chunk(self) -> "tuple[Range, Range]":
        """The left and the right half of the columns."""
        return tuple(map(Range, self.lower.chunk(2, dim=1), self.upper.chunk(2, dim=1)))

    def __add__(self, other: "Range") -> "Range":
        ends = [self.lower + other.lower, self.upper + other.upper]
        return hull(ends, certain=self._settles(other))

    def __mul__(self, other: "Range") -> "Range":
        ends = [a * b for a in (self.lower, self.upper) for b in (other.lower, other.upper)]
        return hull(ends, certain=self._settles(other))

    def _settles(self, other: "Range") -> Tensor:
        """Where a NaN among the ends of an operation's result is there whatever the operands are."""
        return (self.certain & other.certain) | self.lower.isnan() | other.lower.isnan()


def hull(ends: list[Tensor], certain: Tensor) -> Range:
    """The smallest range that holds all `ends`; where one is NaN and that is not `certain`, anything."""
    stacked = torch.stack(ends)
    return Range(stacked.amin(0), stacked.amax(0)).with_anything(stacked.isnan().any(0) & ~certain)
