"""What the router makes of ids that name no expert, and of tokens that name one twice: every route, once, or never."""

import pytest
import torch

from nvfp4_suite.contract import gpus
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import experts
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.tiles import Tile

from ..addresses import checked_addresses
from ..engine import on_gpu
from ..poison import poisoned_allocations


def _check_placed_once(ids: torch.Tensor, number: int, block: int, device: str) -> None:
    """Routes of the experts 0 to `number` - 1 stand in blocks of their experts, each once."""
    tile = Tile(block, num_stages=2)
    plan = plan_layer(gpus.PORTABLE, LayerShape(number, ids.shape[1], 16, 16), len(ids), override=tile)
    with poisoned_allocations(), checked_addresses():
        block_routes, block_expert = (tensor.cpu() for tensor in experts.route_blocks(plan, ids.to(device)))
    routes, owner = block_routes.flatten(), block_expert.repeat_interleave(block_routes.shape[1])
    placed = routes < ids.numel()
    named = ids.flatten()
    assert torch.equal(routes[placed].sort().values, ((named >= 0) & (named < number)).nonzero().flatten().int())
    assert torch.equal(named[routes[placed]], owner[placed])
    assert (routes[~placed] == ids.numel()).all()


@pytest.mark.fault("vllm-project/vllm-xpu-kernels#571")
@pytest.mark.parametrize("dropped", [-1, 2, 3])
def test_a_dropped_route_is_in_no_block(dropped: int, device):
    _check_placed_once(torch.tensor([[0, dropped], [dropped, dropped], [1, 0]], dtype=torch.int32), 2, 16, device)


NAMED = {89: [5, 88, 88, 65], 4: [1, 3, 3, 2]}  # by every token


@pytest.mark.fault("flashinfer-ai/flashinfer#3011")
@pytest.mark.parametrize(
    ("among", "tokens", "block"),
    [
        (89, 2, 16),
        (4, 257, 64),
        # Every size of block; either side of a full one, and of a chunk of 128 routes.
        *[(4, 8, 16), (4, 9, 16), (4, 16, 32), (4, 17, 32), (4, 32, 64), (4, 33, 64), (4, 33, 128)],
        *on_gpu([(89, 257, 16), (89, 257, 128), (89, 266, 16), (89, 267, 32), (89, 534, 64), (89, 32768, 128)]),
    ],
)
def test_both_slots_of_an_expert_named_twice_are_placed(among: int, tokens: int, block: int, device):
    ids = torch.tensor([NAMED[among]], dtype=torch.int32).repeat(tokens, 1)
    _check_placed_once(ids, among, block, device)
