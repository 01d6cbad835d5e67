"""A W4A4 layer on inputs like real ones, stage by stage: each on what the kernel itself made of the one before."""

from collections.abc import Callable

import pytest
import torch

from nvfp4_suite.cases.layers import RANDOM
from nvfp4_suite.contract.case import Case, torch_dtype
from nvfp4_suite.contract.gpus import PORTABLE
from nvfp4_suite.kernels import experts
from nvfp4_suite.kernels.plan import LayerPlan, plan_layer
from nvfp4_suite.kernels.w4a4_layer import Rows, Scales
from nvfp4_suite.reference import bounds, formats, judge, moe, quantize
from nvfp4_suite.reference.accumulation import likely_sums, worst_sums
from nvfp4_suite.reference.activations import Activation
from nvfp4_suite.reference.ranges import Range
from nvfp4_suite.reference.rounding import rounding_form

from ..engine import on_gpu
from ..held import held
from ..moe.subject import inputs_of, plan_options
from . import w4a4_launches as launches

CASES = [case for case in RANDOM if case.format == "w4a4"]
every_case = pytest.mark.parametrize("case", CASES)


def plan_of(case: Case) -> LayerPlan:
    return plan_layer(PORTABLE, case.shape, case.tokens, kernel="w4a4", **plan_options(case))


def entering(case: Case) -> torch.Tensor:
    """What is quantized: a row per token, or a weighted row per route."""
    inputs, form = inputs_of(case), rounding_form("w4a4", torch_dtype(case.dtype))
    if not case.weight_on_input:
        return inputs.hidden_states
    x = inputs.hidden_states.double().repeat_interleave(case.shape.top_k, 0)
    return moe.weigh_input(x, inputs.topk_weights.flatten().double(), form).to(form.dtype)


@held(maxsize=8)
def by_kernel(case: Case, device: str) -> tuple[Rows, Rows, torch.Tensor]:
    """(what enters gate_up, what enters down, the routes), each from the kernel's own of the stage before."""
    inputs, plan = inputs_of(case), plan_of(case)
    banks, scales, routing = inputs.banks, Scales.of(inputs.banks), (inputs.topk_weights, inputs.topk_ids)
    rows = launches.quantize(plan, entering(case), scales.gate_up_stored, device)
    weights = banks.gate_up_packed, banks.gate_up_scale, scales.gate_up_alpha
    limits = {"activation_alpha": case.activation_alpha, "activation_limit": case.activation_limit}
    h = launches.gate_up(plan, rows, weights, scales.down_stored, routing, device, **limits)
    weights = banks.down_packed, banks.down_scale, scales.down_alpha
    return rows, h, launches.down(plan, h, weights, routing, torch_dtype(case.dtype), device)


def enclosed(case: Case, stage: Callable, rows: torch.Tensor) -> tuple[torch.Tensor, Range]:
    """(the routes that count, what each may have): the part that the worst and the likely sums of `stage` share.

    `stage(sums_of, rows, expert, topk_weights)` is of one expert; `rows` [R, K] are of all routes, or of all tokens.
    """
    inputs, top_k = inputs_of(case), case.shape.top_k
    routes, ends = [], []
    for expert, tokens, slots in moe.routes_by_expert(inputs.topk_ids, case.shape.experts):
        mine = tokens * top_k + slots
        of_expert = rows[mine if len(rows) == inputs.topk_ids.numel() else tokens]
        worst, likely = (
            stage(sums_of, of_expert, expert, inputs.topk_weights[tokens, slots].double())
            for sums_of in (worst_sums, likely_sums)
        )
        routes.append(mine)
        ends.append(worst.within(likely))
    lower, upper = (torch.cat([getattr(one, end) for one in ends]) for end in ("lower", "upper"))
    return torch.cat(routes), Range(lower, upper)


@every_case
def test_the_quantizers_bytes(case: Case, device):
    x, stored = entering(case), Scales.of(inputs_of(case).banks).gate_up_stored
    for found, expected in zip(by_kernel(case, device)[0], quantize.quantize(x, stored, "vllm"), strict=True):
        assert torch.equal(found, expected)


@every_case
def test_codes_behind_the_activation_differ_at_proved_boundaries_alone(case: Case, device):
    banks, form = inputs_of(case).banks, rounding_form("w4a4", torch_dtype(case.dtype))
    weights = moe.Weights.of_banks(banks, form)
    activation = Activation.of_options(case.activation, case.activation_alpha, case.activation_limit, form)

    def activated(sums_of: Callable, x: torch.Tensor, expert: int, _) -> Range:
        sums = sums_of(Range.point(x), weights.gate_up[expert], torch.finfo(form.dtype).tiny).range
        gate, up = bounds._times(sums, weights.gate_up_alpha[expert], form).chunk()
        return bounds.enclose_activation(gate, up, activation, form)

    rows, (packed, scale), _ = by_kernel(case, device)
    routes, h = enclosed(case, activated, formats.dequantize_blocks(*rows))
    stored = Scales.of(banks).down_stored
    judge.boundary(packed[routes], scale[routes], h.lower, h.upper, stored, case=case.id)


@every_case
def test_down_of_the_kernels_own_codes_is_within_its_bound(case: Case, device):
    banks, form = inputs_of(case).banks, rounding_form("w4a4", torch_dtype(case.dtype))
    weights = moe.Weights.of_banks(banks, form)

    def routed(sums_of: Callable, h: torch.Tensor, expert: int, w: torch.Tensor) -> Range:
        sums = sums_of(Range.point(h), weights.down[expert], torch.finfo(form.dtype).tiny)
        assert not sums.spread.any()  # what enters is certain
        return bounds._down(sums, weights.down_alpha[expert], None if case.weight_on_input else w, form).range

    def right(_, h: torch.Tensor, expert: int, w: torch.Tensor) -> Range:
        w = None if case.weight_on_input else w
        return Range.point(moe.down(h, weights.down[expert], weights.down_alpha[expert], w, form))

    _, (packed, scale), out = by_kernel(case, device)
    written = torch.isin(inputs_of(case).topk_ids.flatten(), torch.arange(case.shape.experts))
    assert out[~written].isnan().all()  # rows of dropped routes are left alone, so that their h is poison
    h = formats.dequantize_blocks(packed, scale)
    (routes, ends), (_, expected) = enclosed(case, routed, h), enclosed(case, right, h)
    interval = bounds.Interval(ends.lower, ends.upper, expected.lower, form.dtype)
    judge.bounded(out[routes], interval, case=case.id)


@pytest.mark.parametrize("case", CASES[:1] + on_gpu(CASES[1:]))
def test_the_order_of_an_experts_routes_does_not_matter(case: Case, device, monkeypatch):
    """flashinfer-ai/flashinfer#5221: the same bytes with the routes of every block the other way round."""
    before = by_kernel(case, device)
    blocks = experts.route_blocks

    def turned(*arguments):
        block_routes, block_expert = blocks(*arguments)
        return block_routes.flip(1).contiguous(), block_expert

    monkeypatch.setattr(experts, "route_blocks", turned)
    after = by_kernel.__wrapped__(case, device)
    pairs = zip((*before[1], before[2]), (*after[1], after[2]), strict=True)
    assert all(torch.equal(one.view(torch.uint8), other.view(torch.uint8)) for one, other in pairs)
