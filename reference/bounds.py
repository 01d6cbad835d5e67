"""What a W4A16 kernel may give where the order of its sums is its own: an enclosure of every output element.

Rounding is monotone, so an interval can be carried through the layer: it is rounded where the kernel rounds, and
widened only where the kernel's arithmetic is free, in the two sums over K and inside the activation.

Sums. A tensor core adds b >= 4 exact products and an fp32 accumulator in one step: all are aligned to the largest
exponent among them and cut off below 2^-23 of it, and the result is cut off to fp32 (Fasi, Higham, Mikaitis and
Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021; the error analysis of such block additions is Blanchard,
Higham, Lopez, Mary and Pranesh, "Mixed precision block fused multiply-add", 2020). Later cards keep more bits. With P
the sum of the positive and N of the negative products, no product and no partial sum, in any order, exceeds
R = max(P, N) = (sum of magnitudes + |sum|) / 2. So each of the K / b steps loses at most (b + 2) * 2^-23 * R, and
joining K / b chains (split K, two accumulators) no more than 2^-24 * R each: with b = 4 that is 1.625 * K * 2^-23 * R.
`_sums` takes 2 * K * 2^-23 * R, which also holds the second order (R grows with the error, below 2^-4 for K <= 2^18)
and the float64 error of this file. A scalar fp32 loop, in any order, loses less. A subnormal activation may be aligned
as if it had the smallest normal exponent, so R also has one product of that size.

Activation. f is evaluated in fp32, by formulas that differ between kernels; `_f` says what that costs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..contract.banks import ExpertBanks
from . import formats, moe

FP32_SMALLEST_NORMAL = 2.0**-126  # what a kernel that flushes subnormals may lose
FP32_OVERFLOW = 2.0**128
MAX_K = 2**18


@dataclass(frozen=True, eq=False)
class Interval:
    """An output's enclosure: `lower` <= output <= `upper`, and the reference's rounded result `expected`.

    float64 [T, H], each a value of `dtype`, the output's. NaN in both ends: the output must be NaN. An element from
    -inf to inf is open: an overflow on the way depends on the order of the sums, and even NaN is right.
    """

    lower: Tensor
    upper: Tensor
    expected: Tensor
    dtype: torch.dtype


def enclose(
    hidden_states: Tensor,
    banks: ExpertBanks,
    topk_weights: Tensor,
    topk_ids: Tensor,
    *,
    activation: str = "silu",
    activation_alpha: float = 1.702,
    activation_limit: float = 7.0,
    weight_on_input: bool = False,
) -> Interval:
    """The enclosure of a W4A16 layer's output, for arguments as in `moe.expert_layer`.

    Raises what `moe.expert_layer` raises, and ValueError if hidden or intermediate is above 2^18.
    """
    if max(banks.hidden, banks.intermediate) > MAX_K:
        raise ValueError(
            f"hidden is {banks.hidden} and intermediate {banks.intermediate}, but both should be <= {MAX_K}"
        )
    expected = moe.expert_layer(
        hidden_states,
        banks,
        topk_weights,
        topk_ids,
        activation=activation,
        activation_alpha=activation_alpha,
        activation_limit=activation_limit,
        weight_on_input=weight_on_input,
        rounding="w4a16",
    )
    form = moe.rounding_form("w4a16", hidden_states.dtype)
    gated = moe.Activation.of_options(activation, activation_alpha, activation_limit, form)
    tiny = torch.finfo(hidden_states.dtype).tiny

    x, weights = hidden_states.double(), topk_weights.double()
    routes = Range.point(x.new_zeros(*topk_ids.shape, x.shape[1]))
    for expert, tokens, slots in moe.routes_by_expert(topk_ids, banks.experts):
        rows, w = x[tokens], weights[tokens, slots]
        if weight_on_input:
            rows, w = moe.weigh_input(rows, w, form), torch.ones_like(w)
        gate, up = _gate_up(rows, banks, expert, tiny, form)
        route = _down(_activate(gate, up, gated, form), banks, expert, w, tiny, form)
        routes.lower[tokens, slots], routes.upper[tokens, slots] = route.lower, route.upper
    total = _combine(routes, form)
    return Interval(total.lower, total.upper, expected, hidden_states.dtype)


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

    def chunk(self) -> "tuple[Range, Range]":
        """The left and the right half of the columns."""
        return tuple(map(Range, self.lower.chunk(2, dim=1), self.upper.chunk(2, dim=1)))

    def __add__(self, other: "Range") -> "Range":
        ends = [self.lower + other.lower, self.upper + other.upper]
        return _hull(ends, certain=self._settles(other))

    def __mul__(self, other: "Range") -> "Range":
        ends = [a * b for a in (self.lower, self.upper) for b in (other.lower, other.upper)]
        return _hull(ends, certain=self._settles(other))

    def _settles(self, other: "Range") -> Tensor:
        """Where a NaN among the ends of an operation's result is there whatever the operands are."""
        return (self.certain & other.certain) | self.lower.isnan() | other.lower.isnan()


def _hull(ends: list[Tensor], certain: Tensor) -> Range:
    """The smallest range that holds all `ends`; where one is NaN and that is not `certain`, anything."""
    stacked = torch.stack(ends)
    anything = stacked.isnan().any(0) & ~certain
    lower, upper = stacked.amin(0), stacked.amax(0)
    return Range(lower.masked_fill(anything, -torch.inf), upper.masked_fill(anything, torch.inf))


def _gate_up(x: Tensor, banks: ExpertBanks, expert: int, tiny: float, form: moe.Rounding) -> tuple[Range, Range]:
    weight = formats.dequantize_blocks(banks.gate_up_packed[expert], banks.gate_up_scale[expert])
    sums = _sums(Range.point(x), weight, tiny).map(form.fp32)
    scaled = sums * Range.point(banks.gate_up_global[expert].double())
    return scaled.map(form.fp32).map(form.narrow).chunk()


def _activate(gate: Range, up: Range, activation: moe.Activation, form: moe.Rounding) -> Range:
    lower, upper = activation.clamp(gate.lower, up.lower), activation.clamp(gate.upper, up.upper)
    gate, up = map(Range, lower, upper)
    if activation.name == "swigluoai":
        up = up.map(lambda u: form.fp32(u + 1))
    return (_f(gate, activation) * up).map(form.fp32).map(form.narrow)


def _down(h: Range, banks: ExpertBanks, expert: int, w: Tensor, tiny: float, form: moe.Rounding) -> Range:
    weight = formats.dequantize_blocks(banks.down_packed[expert], banks.down_scale[expert])
    result = _sums(h, weight, tiny).map(form.fp32)
    result = (result * Range.point(banks.down_global[expert].double())).map(form.fp32)
    return (result * Range.point(w[:, None])).map(form.fp32).map(form.narrow)


def _combine(routes: Range, form: moe.Rounding) -> Range:
    total = Range.point(torch.zeros_like(routes.lower[:, 0]))
    for slot in range(routes.lower.shape[1]):
        total = (total + Range(routes.lower[:, slot], routes.upper[:, slot])).map(form.fp32)
    return total.map(form.narrow)


def _sums(x: Range, weight: Tensor, tiny: float) -> Range:
    """[R, N]: x [R, K] times `weight` [N, K], summed in fp32 in any order; the module derives the bound.

    `tiny` is the smallest normal number of the activations' dtype.
    """
    width = torch.where(x.certain, 0.0, x.upper - x.lower)
    loose = ~width.isfinite()
    half = width.masked_fill(loose, 0) / 2
    centre = torch.where(x.certain, x.lower, (x.lower + half).masked_fill(loose, 0))
    magnitude = weight.abs()
    total, spread = centre @ weight.T, half @ magnitude.T
    products = torch.maximum(x.lower.abs(), x.upper.abs()) @ magnitude.T

    reach = (products + total.abs() + spread) / 2 + tiny * magnitude.amax(1)
    error = 2 * weight.shape[1] * 2.0**-23 * reach
    radius = spread + torch.where(products == 0, 0.0, error + FP32_SMALLEST_NORMAL)  # all products 0: the sum is +0
    radius = torch.where(total.isfinite(), radius, 0.0)  # inf and NaN come of certain elements, in any order
    overflow = total.isfinite() & ~(reach + error < FP32_OVERFLOW)
    anything = (overflow | loose.any(1, keepdim=True)) & ~total.isnan()
    lower, upper = total - radius, total + radius
    return Range(lower.masked_fill(anything, -torch.inf), upper.masked_fill(anything, torch.inf))


# Where f has its only minimum; it falls before and rises behind. Of silu this is -(1 + W(1/e)), W being Lambert's.
_LOWEST_AT = {"silu": -1.2784645427610738, "gelu": -0.7517915246935646, "gelu_tanh": -0.7524614220710163}


def _f(gate: Range, activation: moe.Activation) -> Range:
    """f of the clamped gate, with the error of evaluating it in fp32.

    x * sigmoid(z), as x / (1 + exp(-z)) or otherwise: z has a relative error of at most 2^-21 (gelu_tanh: seven
    roundings and constants; silu none), the argument z * log2(e) of ex2 one more of 2^-23, and both count |z|-fold in
    exp(-z) and no more in the result. ex2.approx and the division may each be 2 ulps off, two more operations half an
    ulp: below (|z| + 2) * 2^-20 for z < 0, below 2 * 2^-20 for z > 0. Where exp overflows or a result is subnormal, the
    sigmoid is less than 2^-126 off. x * (1 + erf(x / sqrt 2)) / 2: erf is 2 ulps off, its argument two roundings,
    1 + erf one more: below 2^-22 of x, and the product's rounding.
    """
    ends = [activation.f(gate.lower), activation.f(gate.upper)]
    lowest_at = _lowest_at(activation)
    bottom = activation.f(torch.full_like(gate.lower, lowest_at))
    straddles = (gate.lower < lowest_at) & (gate.upper > lowest_at)
    exact = _hull([*ends, torch.where(straddles, bottom, ends[0])], certain=gate.certain)

    size = torch.maximum(exact.lower.abs(), exact.upper.abs())
    x = torch.maximum(gate.lower.abs(), gate.upper.abs())
    if activation.name == "gelu":
        error = (x + size) * 2.0**-22
    else:
        error = size * (2 - activation.exponent(gate.lower).clamp(max=0)) * 2.0**-20 + x * FP32_SMALLEST_NORMAL
    error = torch.where(size.isfinite(), error + FP32_SMALLEST_NORMAL, 0.0)
    return Range(exact.lower - error, exact.upper + error)


def _lowest_at(activation: moe.Activation) -> float:
    if activation.name == "swigluoai":
        return _LOWEST_AT["silu"] / activation.alpha
    return _LOWEST_AT[activation.name]
