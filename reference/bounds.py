"""What a layer's output may be where the order of its sums is the kernel's own: an enclosure of every element.

Rounding is monotone, so a range can be carried through the layer: it is rounded where the kernel rounds, and widened
only where the kernel's arithmetic is free, in the two sums over K (accumulation.py) and inside the activation
(activation_bounds.py). It is carried twice, once with the worst that any order can do to a sum and once with what is
likely, and the output must lie in both. The worst is narrower while K is short; for K in the hundreds and more it is
so wide that it proves little.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..contract.banks import ExpertBanks
from . import moe, quantize
from .accumulation import MAX_K, Sums, Terms
from .activation_bounds import enclose_f
from .activations import Activation
from .codes import Values
from .formats import decode_e2m1, decode_e4m3
from .ranges import Range, hull
from .rounding import Rounding, rounding_form, unrounded

WAYS = (Terms.worst, Terms.likely)


@dataclass(frozen=True, eq=False)
class Interval:
    """An output's enclosure: `lower` <= output <= `upper`, and the reference's rounded result `expected`.

    float64 [T, H], each a value of `dtype`, the output's. NaN in both ends: the output must be NaN. An element from
    -inf to inf is open: an overflow on the way depends on the order of the sums, and even NaN is right.
    `routes` [T, top_k, H] is what the reference's routes contribute, by the experts `topk_ids` [T, top_k].
    """

    lower: Tensor
    upper: Tensor
    expected: Tensor
    dtype: torch.dtype
    routes: Tensor | None = None
    topk_ids: Tensor | None = None


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
    rounding: str = "w4a16",
) -> Interval:
    """The enclosure of a layer's output in the form `rounding` of rounding.FORMS, arguments as in `moe.expert_layer`.

    An *_atomic form may add its routes in any order. Raises what `moe.expert_layer` raises, and ValueError if hidden or
    intermediate is above 2^18.
    """
    if max(banks.hidden, banks.intermediate) > MAX_K:
        raise ValueError(
            f"hidden is {banks.hidden} and intermediate {banks.intermediate}, but both should be <= {MAX_K}"
        )
    form = rounding_form(rounding, hidden_states.dtype)
    gated = Activation.of_options(activation, activation_alpha, activation_limit, form)
    weights = moe.Weights.of_banks(banks, form)
    layer = (hidden_states, weights, topk_weights, topk_ids, gated, weight_on_input, form)
    routes, worst, likely = _enclosed_layer(*layer)
    both = worst.within(likely)
    return Interval(both.lower, both.upper, moe.combine(routes, form), hidden_states.dtype, routes, topk_ids)


def _enclosed_layer(
    hidden_states: Tensor,
    weights: moe.Weights,
    topk_weights: Tensor,
    topk_ids: Tensor,
    activation: Activation,
    weight_on_input: bool,
    form: Rounding,
) -> tuple[Tensor, Range, Range]:
    """(routes as of moe.layer_routes, the output's worst range, its likely range).

    An expert at a time, whose weights are decoded once: a published layer takes a GPU seconds, most of them for that.
    """
    tiny = torch.finfo(hidden_states.dtype).tiny
    x, on_route = hidden_states.double(), topk_weights.double()
    routes = x.new_zeros(*topk_ids.shape, x.shape[1])
    ends = [[torch.zeros_like(routes) for _ in range(3)] for _ in WAYS]  # lower, upper, spread
    for expert, tokens, slots in moe.routes_by_expert(topk_ids, len(weights.gate_up)):
        route = (x[tokens], on_route[tokens, slots], weights.of_expert(expert), activation, weight_on_input, form)
        routes[tokens, slots] = moe.expert_routes(*route)
        for (lower, upper, spread), found in zip(ends, _enclosed_routes(*route, tiny), strict=True):
            lower[tokens, slots], upper[tokens, slots] = found.range.lower, found.range.upper
            spread[tokens, slots] = found.spread
    worst, likely = (_combine(Range(lower, upper), spread, topk_ids, form) for lower, upper, spread in ends)
    return routes, worst, likely


def _enclosed_routes(
    rows: Tensor,
    w: Tensor | None,
    one: moe.Weights,
    activation: Activation,
    weight_on_input: bool,
    form: Rounding,
    tiny: float,
) -> Iterator[Sums]:
    """moe.expert_routes, in each of WAYS."""
    if weight_on_input:
        rows, w = moe.weigh_input(rows, w, form), None
    terms = Terms.of(Range.point(moe.enter(rows, one.gate_up_input_scale, form)), one.gate_up, tiny)
    for sums in WAYS:
        gated = sums(terms).range  # rows are certain: no spread
        gate, up = _times(gated, one.gate_up_alpha, form).map(form.between).chunk()
        h = enter(enclose_activation(gate, up, activation, form), one.down_input_scale, form)
        yield _down(sums(Terms.of(h, one.down, tiny)), one.down_alpha, w, form)


def _times(x: Range, factor: Tensor, form: Rounding) -> Range:
    return (x.map(form.fp32) * Range.point(factor)).map(form.fp32)


def enclose_activation(gate: Range, up: Range, activation: Activation, form: Rounding) -> Range:
    """moe.activate of the ranges `gate` and `up`."""
    lower, upper = activation.clamp(gate.lower, up.lower), activation.clamp(gate.upper, up.upper)
    gate, up = map(Range, lower, upper)
    if activation.name == "swigluoai":
        up = up.map(lambda u: form.fp32(u + 1))
    return (enclose_f(gate, activation) * up).map(form.fp32).map(form.between)


def enter(x: Range, input_scale: Tensor | None, form: Rounding) -> Range:
    """moe.enter of the range `x` [R, K].

    For one block scale a value grows with x. The scale grows with the largest magnitude of the block, so it is one of
    the few between those of the smallest and the largest that the block may have. (Not so in recipes that give a block
    of zeros a large scale; no form has one of those.)
    """
    if form.recipe is None:
        return x
    stored = moe.stored(input_scale, form.recipe)
    values = Values.of(x.lower, x.upper, stored, quantize.RECIPES[form.recipe])
    least, most = values.amaxes()
    anything = values.anything.any(-1)
    last = values.scale_of(most)
    first = torch.where(anything, last, values.scale_of(least))  # where it is anything, one scale will do
    ends = []
    for step in range(int((last - first).max()) + 1):
        scale = torch.minimum(first + step, last)
        for end in (values.lower, values.upper):
            ends.append(decode_e2m1(values.codes_of(end, scale)).double() * decode_e4m3(scale).double()[..., None])
    anything = (anything & ~values.lower.isnan().any(-1))[..., None]
    entered = hull(ends, certain=torch.ones_like(anything)).with_anything(anything)
    return entered.map(lambda end: end.flatten(-2))


def _down(sums: Sums, alpha: Tensor, w: Tensor | None, form: Rounding) -> Sums:
    """The routes: sums * alpha * w, rounded to d.

    A spread that is wide enough to stay apart leaves the rounding error, half a unit, in the range; another joins it.
    """

    def scaled(x: Range) -> Range:
        x = _times(x, alpha, form)
        return x if w is None else _times(x, w[:, None], form)

    joined = scaled(sums.range.widened(sums.spread)).map(form.narrow)
    d = torch.finfo(form.dtype)
    half_unit = torch.maximum(joined.lower.abs(), joined.upper.abs()) * d.eps / 2 + d.smallest_normal * d.eps / 2
    spread = sums.spread * (alpha.abs() if w is None else alpha.abs() * w.abs()[:, None])
    apart = (spread > 2 * half_unit) & half_unit.isfinite()
    inner = scaled(sums.range).widened(half_unit)
    ends = (torch.where(apart, a, b) for a, b in ((inner.lower, joined.lower), (inner.upper, joined.upper)))
    return Sums(Range(*ends), torch.where(apart, spread, 0.0))


def _combine(routes: Range, spread: Tensor, topk_ids: Tensor, form: Rounding) -> Range:
    """The sum over the slots: ranges add up; so do spreads of one expert, and different experts' are independent."""
    total = Range.point(torch.zeros_like(spread[:, 0]))
    add = unrounded if form.atomic else form.add
    for slot in range(spread.shape[1]):
        total = (total + Range(routes.lower[:, slot], routes.upper[:, slot])).map(add)
    if form.atomic:
        total = _in_any_order(total, torch.maximum(routes.lower.abs(), routes.upper.abs()), form)
    same = (topk_ids[:, :, None] == topk_ids[:, None, :]).double()
    return total.widened((spread * (same @ spread)).sum(1).sqrt()).map(form.narrow)


def _in_any_order(total: Range, magnitudes: Tensor, form: Rounding) -> Range:
    """`total`, where each of the slots - 1 additions rounds to d: each may lose a unit roundoff of what it adds up."""
    growth = (1 + torch.finfo(form.dtype).eps / 2) ** (magnitudes.shape[1] - 1)
    largest = magnitudes.sum(1) * growth
    overflow = (largest > torch.finfo(form.dtype).max) & ~total.lower.isnan()
    return total.widened(largest - magnitudes.sum(1)).with_anything(overflow)
