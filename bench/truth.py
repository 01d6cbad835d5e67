"""What is right for what is timed: enclosures by the reference, of a sample of tokens, and who may be held to them.

Every element of a sampled row must lie in the enclosure that number formats and the free order of sums leave
(reference/bounds.py, reference/accumulation.py): no tolerance is chosen here.
"""

import torch
from torch import Tensor

from ..contract.kernel import Kernel
from ..kernels import hopper
from ..reference import bounds, judge, moe
from ..reference.accumulation import likely_sums, worst_sums
from ..reference.activations import Activation
from ..reference.bounds import Interval
from ..reference.moe import DecodedExperts, routes_by_expert
from ..reference.ranges import Range
from ..reference.rounding import Rounding, rounding_form
from .points import sample
from .stages import ALPHA, LIMIT, Given, Output


class Truth:
    """The right answers on `given`, of at most `count` tokens; each is computed once, when it is asked for."""

    def __init__(self, given: Given, count: int):
        self.given = given
        self.tokens = torch.tensor(sample(given.tokens, count), device=given.hidden_states.device)
        slots = torch.arange(given.topk_ids.shape[1], device=self.tokens.device)
        self.routes = (self.tokens[:, None] * len(slots) + slots).flatten()
        self._found: dict[tuple[str, str], Interval] = {}

    def check(self, out: Output, gives: str, kernel: Kernel, label: str) -> float | None:
        """The error of `out`, what a stage gives: its sample's RMS difference from the reference over the RMS of that.

        None where it holds numbers of routes. Raises AssertionError, with the judge's words, for a wrong output:
        also for one that is not finite somewhere outside the sample.
        """
        if gives == "blocks":
            check_blocks(*out, self.given.topk_ids)
            return None
        interval = self.interval(gives, kernel.promise.rounding)
        return judge_rows(out, self.sampled(out, gives), interval, label)

    def sampled(self, out: Tensor, gives: str) -> Tensor:
        """The rows of `out` that are judged: those of the sampled tokens, or of all their routes."""
        return out[self.tokens if gives in ("layer", "sum") else self.routes]

    def interval(self, gives: str, rounding: str) -> Interval:
        """Of the sampled rows of what a stage gives, in a kernel's `rounding` form."""
        key = (gives, rounding)
        if key not in self._found:
            self._found[key] = JUDGES[gives](self, rounding)
        return self._found[key]

    def form(self) -> Rounding:
        return rounding_form("w4a16", self.given.hidden_states.dtype)

    def layer(self, rounding: str) -> Interval:
        rows = (tensor[self.tokens] for tensor in (self.given.topk_weights, self.given.topk_ids))
        x, banks = self.given.hidden_states[self.tokens], self.given.banks
        return bounds.enclose(x, banks, *rows, rounding=rounding, **self.given.options)

    def gate_up(self, _rounding: str) -> Interval:
        banks, tokens = self.given.banks, self.routes // self.given.topk_ids.shape[1]
        return self._gemm(self.given.hidden_states[tokens], banks.gate_up_packed, banks.gate_up_scale, None)

    def gate_up_activated(self, _rounding: str) -> Interval:
        """[R, I]: of a gate_up that applies the activation before it stores, and rounds as two launches do."""
        form, between = self.form(), self.interval("gate_up", _rounding)
        gated = Activation.of_options(self.given.layer.activation, ALPHA, LIMIT, form)
        found = bounds.enclose_activation(*Range(between.lower, between.upper).chunk(), gated, form)
        expected = moe.activate(*between.expected.chunk(2, dim=1), gated, form)
        return Interval(found.lower, found.upper, expected, form.dtype)

    def gate_up_interleaved(self, _rounding: str) -> Interval:
        """[R, I]: gate_up_activated, with I in the order of hopper.k_of_position."""
        natural = self.gate_up_activated(_rounding)
        order = [hopper.k_of_position(position) for position in range(natural.expected.shape[1])]
        lower, upper, expected = (one[:, order] for one in (natural.lower, natural.upper, natural.expected))
        return Interval(lower, upper, expected, natural.dtype)

    def down(self, _rounding: str) -> Interval:
        banks, weights = self.given.banks, self.given.topk_weights.flatten()[self.routes]
        return self._gemm(self.given.act[self.routes], banks.down_packed, banks.down_scale, weights)

    def activation(self, _rounding: str) -> Interval:
        form = self.form()
        gated = Activation.of_options(self.given.layer.activation, ALPHA, LIMIT, form)
        gate, up = self.given.gate_up[self.routes].double().chunk(2, dim=1)
        found = bounds.enclose_activation(Range.point(gate), Range.point(up), gated, form)
        return Interval(found.lower, found.upper, moe.activate(gate, up, gated, form), form.dtype)

    def sum(self, _rounding: str) -> Interval:
        form, top_k = self.form(), self.given.topk_ids.shape[1]
        routes = self.given.routes[self.routes].double().unflatten(0, (-1, top_k))
        expected = moe.combine(routes, form)  # the order of these additions is promised
        return Interval(expected, expected, expected, form.dtype)

    def _gemm(self, x: Tensor, packed: Tensor, scale: Tensor, weights: Tensor | None) -> Interval:
        """Routes with the rows `x`, of the banks `packed` and `scale`, whose globals are those of the GEMM."""
        banks, ids = self.given.banks, self.given.topk_ids.flatten()[self.routes]
        alpha = banks.gate_up_global if packed is banks.gate_up_packed else banks.down_global
        return enclose_gemm(x, DecodedExperts(packed, scale), alpha, ids, weights, self.form())


_STAGES = ("layer", "gate_up", "gate_up_activated", "gate_up_interleaved", "activation", "down", "sum")
JUDGES = {name: getattr(Truth, name) for name in _STAGES}


def judge_rows(out: Tensor, rows: Tensor, interval: Interval, label: str) -> float:
    """The relative RMS error of `rows`, those of `out` that `interval` is of. Raises AssertionError as Truth.check."""
    if not torch.isfinite(out).all():
        wrong = (~torch.isfinite(out)).sum().item()
        raise AssertionError(f"{wrong} of {out.numel()} elements are not finite, or were never written")
    judge.bounded(rows, interval, kernel=label)
    difference = rows.double() - interval.expected
    return (difference.square().mean().sqrt() / interval.expected.square().mean().sqrt()).item()


def enclose_gemm(
    x: Tensor, weights: DecodedExperts, alpha: Tensor | None, ids: Tensor, on_route: Tensor | None, form: Rounding
) -> Interval:
    """The enclosure of ((x[r] @ weights[ids[r]].T) * alpha[ids[r]]) * on_route[r], in fp32, then rounded to d.

    `x` [R, K] of d; `alpha` f32 [E, N] and `on_route` f32 [R] may be None, for 1. Rows of an id that is no expert are
    zeros.
    """
    columns = weights.packed.shape[1]
    lower, upper, expected = (x.new_zeros(len(x), columns, dtype=torch.float64) for _ in range(3))
    tiny = torch.finfo(x.dtype).tiny
    for expert, rows, _ in routes_by_expert(ids[:, None], len(weights)):
        weight, mine = weights[expert], x[rows].double()
        factor = torch.ones_like(weight[:, 0]) if alpha is None else alpha[expert].double()
        w = None if on_route is None else on_route[rows].double()
        either = [_finished(sums(Range.point(mine), weight, tiny).range, factor, w, form) for sums in _SUMS]
        both = either[0].within(either[1])
        lower[rows], upper[rows] = both.lower, both.upper
        expected[rows] = moe.down(mine, weight, factor, w, form)
    return Interval(lower, upper, expected, form.dtype)


_SUMS = (worst_sums, likely_sums)


def _finished(sums: Range, alpha: Tensor, w: Tensor | None, form: Rounding) -> Range:
    """What a GEMM makes of its sums, every step of which is monotone."""
    scaled = (sums.map(form.fp32) * Range.point(alpha)).map(form.fp32)
    if w is not None:
        scaled = (scaled * Range.point(w[:, None])).map(form.fp32)
    return scaled.map(form.narrow)


def check_blocks(block_routes: Tensor, block_expert: Tensor, topk_ids: Tensor) -> None:
    """Every route is in one block, of its own expert. Raises AssertionError."""
    ids, routes = topk_ids.flatten(), topk_ids.numel()
    used = block_expert >= 0
    listed = block_routes[used]
    there = listed < routes
    found = listed[there]
    once = len(found) == routes and bool((found.sort().values == torch.arange(routes, device=found.device)).all())
    assert once, f"the blocks hold {len(found)} routes, but should hold each of {routes} once"
    named = block_expert[used][:, None].expand_as(listed)[there]
    wrong = (ids[found.long()] != named).sum().item()
    assert not wrong, f"{wrong} of {routes} routes are in a block of another expert"
