"""Routing on the device against its definition: expert by expert, in ascending order of route, in whole blocks."""

from dataclasses import replace

import pytest
import torch

from nvfp4_suite.contract import gpus
from nvfp4_suite.contract.case import ROUTINGS, Case, topk_ids
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import experts
from nvfp4_suite.kernels.plan import LayerPlan, plan_layer
from nvfp4_suite.kernels.tiles import Tile

from ..engine import on_gpu
from ..poison import poisoned_allocations

# experts, top_k, tokens: one token; one expert; more experts than routes; one chunk of 128 routes exactly and one more;
# several chunks; experts not a power of two; as many experts and tokens as are promised
SIZES = [(4, 2, 1), (1, 1, 40), (160, 8, 2), (4, 4, 32), (4, 3, 43), (16, 6, 60), (72, 2, 20), (512, 5, 3)]
SIZES += on_gpu([(512, 10, 32768), (160, 8, 32768), (256, 8, 5000)])

CASES = [
    Case(LayerShape(experts, top_k, 16, 16), tokens, routing)
    for experts, top_k, tokens in SIZES
    for routing in ROUTINGS
    if routing != "twice" or top_k > 1
]


def _blocks_by_definition(ids: torch.Tensor, experts: int, block_m: int) -> tuple[list[list[int]], list[int]]:
    """The blocks that are needed: their routes, filled up with the number of routes, and their experts."""
    lists, routes, owner = [[] for _ in range(experts)], [], []
    for route, expert in enumerate(ids.flatten().tolist()):
        if 0 <= expert < experts:
            lists[expert].append(route)
    for expert, mine in enumerate(lists):
        for start in range(0, len(mine), block_m):
            block = mine[start : start + block_m]
            routes.append(block + [ids.numel()] * (block_m - len(block)))
            owner.append(expert)
    return routes, owner


def _check(ids: torch.Tensor, shape: LayerShape, block_m: int, device: str) -> None:
    _check_plan(plan_layer(gpus.PORTABLE, shape, len(ids), override=Tile(block_m, num_stages=2)), ids, device)


def _check_plan(plan: LayerPlan, ids: torch.Tensor, device: str) -> None:
    shape, block_m = plan.shape, plan.launch("list_blocks").constexpr("BLOCK_M")
    with poisoned_allocations():
        block_routes, block_expert = experts.route_blocks(plan, ids.to(device))
    routes, owner = _blocks_by_definition(ids, shape.experts, block_m)
    assert block_expert.tolist() == owner + [-1] * (len(block_expert) - len(owner))
    assert block_routes.tolist()[: len(owner)] == routes
    assert (block_routes[len(owner) :] == ids.numel()).all(), "a block that is not needed names a route"


@pytest.mark.parametrize("case", CASES)
def test_blocks_are_those_of_the_definition(case, device):
    _check(topk_ids(case), case.shape, 16, device)


@pytest.mark.parametrize("block_m", [16, 32, 64, 128])
@pytest.mark.parametrize("tokens", [15, 16, 17, 63, 64, 65, 128, 129])
def test_full_and_overfull_blocks_of_one_expert(tokens, block_m, device):
    shape = LayerShape(3, 1, 16, 16)
    _check(torch.full((tokens, 1), 1, dtype=torch.int32), shape, block_m, device)


def test_the_scan_carries_over_its_steps(device):
    """Five chunks of routes at two a step; the planned 128 a step would need more than 16,384 routes."""
    shape = LayerShape(20, 2, 16, 16)
    plan = plan_layer(gpus.PORTABLE, shape, 300)
    small = replace(plan.launch("scan_counts"), constexprs=(("BLOCK_C", 2), ("BLOCK_E", 16)))
    plan = replace(plan, launches=tuple(small if one.stage == small.stage else one for one in plan.launches))
    _check_plan(plan, topk_ids(Case(shape, 300, "dropped")), device)


@pytest.mark.fault("vllm-project/vllm-xpu-kernels#571")
def test_no_route_at_all(device):
    shape = LayerShape(4, 2, 16, 16)
    _check(torch.tensor([[-1, 4], [99, -5], [2**31 - 1, -(2**31)]], dtype=torch.int32), shape, 16, device)
