"""Which block scales and codes a quantizer may give for values that are known up to an enclosure.

A block scale grows with the block's largest magnitude, and under one block scale a code grows with its value. So what
is right lies between what the recipe gives for the ends, and no tolerance is needed.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from .chunks import chunks
from .formats import BLOCK
from .quantize import FP32_MAX, Recipe

NAN_SCALE = 0x7F  # and all above are no scales: negative, or NaN too
RANK = torch.tensor([8, 9, 10, 11, 12, 13, 14, 15, 7, 6, 5, 4, 3, 2, 1, 0], dtype=torch.uint8)  # by value; -0 < +0
CODE = RANK.argsort().to(torch.uint8)  # of a rank


@dataclass(frozen=True, eq=False)
class Values:
    """What was quantized by `recipe`: fp32 [R, K/16, 16], each in [`lower`, `upper`]; `global_scale` is [R, 1].

    NaN in both ends is NaN for certain; -inf to inf is anything, also NaN.
    """

    lower: Tensor
    upper: Tensor
    global_scale: Tensor
    recipe: Recipe

    @classmethod
    def of(cls, lower: Tensor, upper: Tensor, global_scale: Tensor, recipe: Recipe) -> "Values":
        """From float64 [R, K]. A quantizer reads fp32, so what it reads lies between the ends rounded to fp32."""
        ends = (end.float().unflatten(1, (-1, BLOCK)) for end in (lower, upper))
        return cls(*ends, global_scale.reshape(-1, 1).expand(len(lower), 1), recipe)

    @property
    def anything(self) -> Tensor:
        return (self.lower == -torch.inf) & (self.upper == torch.inf)

    def at(self, rows: Tensor, blocks: Tensor) -> "Values":
        """Single blocks, as values [n, 1, 16]."""
        lower, upper = self.lower[rows, blocks][:, None], self.upper[rows, blocks][:, None]
        return Values(lower, upper, self.global_scale[rows], self.recipe)

    def amaxes(self) -> tuple[Tensor, Tensor]:
        """The smallest and the largest [R, K/16] that a block's largest magnitude may be."""
        low, high = self.lower.abs(), self.upper.abs()
        least = torch.minimum(low, high).masked_fill((self.lower < 0) & (self.upper > 0), 0)
        return least.amax(-1), torch.maximum(low, high).amax(-1)

    def scale_of(self, amax: Tensor) -> Tensor:
        return self.recipe.block_scale(amax, self.global_scale)

    def codes_of(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.recipe.codes(x, scale, self.global_scale)


@dataclass(frozen=True, eq=False)
class Verdict:
    """What is right for block scales uint8 [R, K/16] and, under these, codes uint8 [R, K/16, 16], and what is wrong."""

    first_scale: Tensor
    last_scale: Tensor
    wrong_scales: Tensor
    first_code: Tensor
    last_code: Tensor
    wrong_codes: Tensor
    uncertain: Tensor  # codes with more than one right answer

    @classmethod
    def of(cls, values: Values, scale: Tensor, codes: Tensor) -> "Verdict":
        tensors = (values.lower, values.upper, values.global_scale, scale, codes)
        parts = [
            cls._of(Values(*ends, recipe=values.recipe), some_scale, some_codes)
            for *ends, some_scale, some_codes in chunks(*tensors)
        ]
        return cls(*(torch.cat([getattr(one, field.name) for one in parts]) for field in fields(cls)))

    @classmethod
    def _of(cls, values: Values, scale: Tensor, codes: Tensor) -> "Verdict":
        first_scale, last_scale, right_scales = _judge_scales(values, scale)
        first = values.codes_of(values.lower, scale)
        last = first if torch.equal(values.lower, values.upper) else values.codes_of(values.upper, scale)
        rank = RANK[codes.int()]
        right = (RANK[first.int()] <= rank) & (rank <= RANK[last.int()]) & (scale != 0)[..., None]
        right |= (codes == first) | (codes == last) | values.anything
        if (scale == 0).any():  # all but zeros have the largest code then, by some recipes: none lies between
            zero = codes == values.codes_of(torch.zeros_like(values.lower), scale)
            right |= zero & (values.lower <= 0) & (values.upper >= 0) & (values.lower < values.upper)
        decoded = right_scales | (scale < NAN_SCALE)  # else nothing can be said of a code
        uncertain = (first != last) | values.anything
        return cls(first_scale, last_scale, ~right_scales, first, last, ~right & decoded[..., None], uncertain)


def _judge_scales(values: Values, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The first and the last right block scale, and which of `scale` is right.

    Some recipes set the scale of zeros, or of all that underflows, apart from the order of the others.
    """
    least, most = values.amaxes()
    zero = values.scale_of(torch.zeros_like(least))
    first, last = values.scale_of(least), values.scale_of(most)
    underflows = (least < most) & (first == zero) & (values.scale_of(least / 2) == zero)
    if underflows.any():
        first[underflows] = _lowest_scale(values, most, underflows)
    right = ((first <= scale) & (scale <= last)) | (underflows & (scale == zero))
    right |= values.anything.any(-1) & (scale == values.scale_of(torch.full_like(least, torch.nan)))
    return first, last, right


def _lowest_scale(values: Values, most: Tensor, among: Tensor) -> Tensor:
    """The lowest scale that any largest magnitude up to `most` has, [n] for the blocks `among`.

    Halving meets it: the magnitudes that have the lowest scale span more than a factor of 2, whatever the recipe.
    """
    amax, global_scale = most[among].clamp(max=FP32_MAX), values.global_scale.expand_as(most)[among]
    lowest = values.recipe.block_scale(amax, global_scale)
    while amax.any():
        amax = amax / 2
        lowest = torch.minimum(lowest, values.recipe.block_scale(amax, global_scale))
    return lowest
