"""What a sum over K may be where its order is the kernel's own, fp32 is its accumulator and a tensor core may form it.

A tensor core adds b exact products and an fp32 accumulator in one step: all are aligned to the largest exponent among
them, cut off below 2^-(23 + e) of it, and the result is cut off to fp32 (Fasi, Higham, Mikaitis and Pranesh, "Numerical
behavior of NVIDIA tensor cores", 2021; the error analysis of such steps is Blanchard, Higham, Lopez, Mary and Pranesh,
"Mixed precision block fused multiply-add", 2020). For 16-bit operands b and e are 4 and 0 on V100, 8 and 1 on A100, 16
and 2 on H100 (Khattak and Mikaitis, "Accurate models of NVIDIA tensor cores", 2025).

Worst. With P the sum of the positive and N of the negative products, no product and no partial sum, in any order,
exceeds R = max(P, N) = (sum of magnitudes + |sum|) / 2. So each of the K / b steps loses at most (b + 2) * 2^-23 * R,
and joining K / b chains (split K, two accumulators) no more than 2^-24 * R each: with b = 4 that is 1.625 * K * 2^-23 *
R. `worst_sums` takes 2 * K * 2^-23 * R, which also holds the second order (R grows with the error, below 2^-4 for K <=
2^18) and the float64 error of this file. A scalar fp32 loop, in any order, loses less. A subnormal activation may be
aligned as if it had the smallest normal exponent, so R also has one product of that size. Uncertain terms add up.

Likely. Nothing of that is attained where the order does not depend on the values, and where the signs of the weights
do not depend on the errors of what they multiply. `likely_sums` takes these two for granted, and only these:
- With Q^2 the sum of the squared products, a partial sum of j of K terms in such an order has the mean (j / K) * sum
  and a standard deviation of at most Q / 2 (drawing without replacement), so it stays below M = |sum| + 4 Q: 8 of
  them. A step of b >= 8 cuts the sum off once, K / 8 units of 2^-23 * M in all, and in one direction; it cuts off
  products in the direction of each one's sign, so that K of them lose 4 * sqrt(K) units (Hoeffding: 8 of the largest
  standard deviation, half a unit each). So does a scalar fp32 loop, which rounds to nearest.
- Uncertain terms, x[k] +- d[k] times w[k], spread by DEVIATIONS * sqrt(sum (w[k] * d[k])^2): Hoeffding's inequality
  over the signs of w leaves that with a probability below 2 * exp(-18). d is a largest error, which few terms have.

On an H200, by mma.sync and wgmma alike, the error of sums of 64 to 8192 products with NVFP4 weights is at most 0.03 of
the likely for normal activations and 0.11 where one channel is 1000 times the others (tests/hardware/test_sums.py).
Native FP4 units are held to the same model, unmeasured.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .ranges import Range

DEVIATIONS = 6
FP32_SMALLEST_NORMAL = 2.0**-126  # what a kernel that flushes subnormals may lose
FP32_OVERFLOW = 2.0**128
MAX_K = 2**18


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums [R, N]: inside `range`, apart from a `spread` to both sides that is independent of other sums' spreads."""

    range: Range
    spread: Tensor


def worst_sums(x: Range, weight: Tensor, tiny: float) -> Sums:
    """`x` [R, K] times `weight` [N, K], whatever the order. `tiny`: the smallest normal number of the x's dtype."""
    return Terms.of(x, weight, tiny).worst()


def likely_sums(x: Range, weight: Tensor, tiny: float) -> Sums:
    """The same under the two assumptions of the module."""
    return Terms.of(x, weight, tiny).likely()


@dataclass(frozen=True, eq=False)
class Terms:
    """The products of a sum: of each x the largest magnitude and half the width, 0 where not finite."""

    weight: Tensor
    magnitude: Tensor  # of each weight
    largest: Tensor
    half: Tensor
    loose: Tensor  # x that may be inf or NaN, but need not
    total: Tensor
    tiny: Tensor  # a product of the smallest normal activation

    @classmethod
    def of(cls, x: Range, weight: Tensor, tiny: float) -> "Terms":
        """Those of `x` [R, K] times `weight` [N, K], as in `worst_sums`."""
        width = torch.where(x.certain, 0.0, x.upper - x.lower)
        loose = ~width.isfinite()
        half = width.masked_fill(loose, 0) / 2
        centre = torch.where(x.certain, x.lower, (x.lower + half).masked_fill(loose, 0))
        largest = torch.maximum(x.lower.abs(), x.upper.abs())
        magnitude = weight.abs()
        return cls(weight, magnitude, largest, half, loose, centre @ weight.T, tiny * magnitude.amax(1))

    def worst(self) -> Sums:
        """The sums whatever their order."""
        error = 2 * self.weight.shape[1] * 2.0**-23 * self.reach
        return Sums(self._enclosed(error + self.widths, self.reach + error), torch.zeros_like(self.reach))

    def likely(self) -> Sums:
        """The sums under the two assumptions of the module."""
        k, squares = self.weight.shape[1], self.weight.square().T
        spread = DEVIATIONS * (self.half.square() @ squares).sqrt()
        partial = self.total.abs() + 4 * (self.largest.square() @ squares).sqrt() + spread + self.tiny
        reach = torch.minimum(self.reach, partial)
        error = torch.minimum((k / 8 + 4 * k**0.5) * 2.0**-23 * reach, 2 * k * 2.0**-23 * self.reach)
        return Sums(self._enclosed(error, reach + error), spread)

    @cached_property
    def magnitudes(self) -> Tensor:
        return self.largest @ self.magnitude.T

    @cached_property
    def widths(self) -> Tensor:
        """Half of what uncertain x add to the range of each sum."""
        return self.half @ self.magnitude.T

    @cached_property
    def reach(self) -> Tensor:
        """R of the module, for every x in its range."""
        return (self.magnitudes + self.total.abs() + self.widths) / 2 + self.tiny

    def _enclosed(self, radius: Tensor, reach: Tensor) -> Range:
        """total +- radius; a sum of products that are all 0 is +0, and one that may overflow is anything."""
        radius = torch.where(self.magnitudes == 0, 0.0, radius + FP32_SMALLEST_NORMAL)
        radius = torch.where(self.total.isfinite(), radius, 0.0)  # inf and NaN come of certain elements, in any order
        overflow = self.total.isfinite() & ~(reach < FP32_OVERFLOW)
        anything = (overflow | self.loose.any(1, keepdim=True)) & ~self.total.isnan()
        return Range.point(self.total).widened(radius).with_anything(anything)
