"""Routing lists in another order: every expert's blocks hold its routes shuffled."""

import contextlib
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from nvfp4_suite.contract.case import hashed
from nvfp4_suite.kernels import experts


def shuffled(block_routes: Tensor, block_expert: Tensor, routes: int, seed: str) -> Tensor:
    """[blocks, BLOCK_M]: the routes of each expert in another order among the slots that they have."""
    out, expert = block_routes.clone(), block_expert[:, None].expand_as(block_routes)
    for one in block_expert.unique():
        slots = (expert == one) & (block_routes != routes) & (one >= 0)
        mine = block_routes[slots]
        order = hashed(f"{seed}/{int(one)}", len(mine)).argsort().to(mine.device)
        out[slots] = mine[order]
    return out


@contextlib.contextmanager
def shuffled_routes(seed: str) -> Iterator[list[Tensor]]:
    """Within it, GEMMs get their routes shuffled; the lists that were changed, one for each time that it happened."""
    route_blocks, changed = experts.route_blocks, []

    def permuted(plan, topk_ids):
        block_routes, block_expert = route_blocks(plan, topk_ids)
        other = shuffled(block_routes, block_expert, topk_ids.numel(), seed)
        if not torch.equal(other, block_routes):
            changed.append(other)
        return other, block_expert

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experts, "route_blocks", permuted)
        yield changed
