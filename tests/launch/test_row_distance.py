"""Rows of 2^18 to 2^20 elements, and routes of a long prompt: their offsets need 64 bits in every load and every store.

Seen in sgl-project/sglang#4727. tests/moe/test_far_rows.py asks the same of each launch without a GPU. These take up to
15.5 GB: 4.4 each for the input, the routes and the output, and half of it to compare.
"""

import pytest
import torch

from nvfp4_suite.contract import gpus
from nvfp4_suite.kernels import linear
from nvfp4_suite.kernels.linear_plan import plan_linear
from nvfp4_suite.kernels.registry import KERNELS

from ..moe import passing
from ..moe.edges import EDGES, shape_of
from ..moe.gate_up import W4A16

pytestmark = pytest.mark.usefixtures("whole_share")
GATE = 40.0  # from here on silu is the identity


def _ups(tokens: int) -> torch.Tensor:
    return torch.arange(tokens) % 7 - 3


@pytest.mark.fault("sgl-project/sglang#4727")
@pytest.mark.parametrize("edge", ["long rows", "many routes"])
@pytest.mark.parametrize("kernel", W4A16)
def test_a_layer_whose_rows_end_beyond_2_31(kernel: str, edge: str, device):
    """Every token names every expert, and has one value in all of its outputs; all of them are looked at."""
    shape, tokens = shape_of(edge, kernel), EDGES[edge][1]
    experts, hidden = shape.experts, shape.hidden
    assert tokens * experts * hidden > 2**31  # 37,449.1 tokens of 8 routes of 7168 are as many
    banks, ups = passing.banks(experts, hidden, shape.intermediate, device), _ups(tokens)
    x = passing.tokens([GATE] * tokens, ups.tolist(), hidden, torch.bfloat16, device)
    weights = torch.ones(tokens, experts, device=device)
    ids = torch.arange(experts, dtype=torch.int32, device=device).repeat(tokens, 1)
    one = KERNELS[kernel]
    out = one.run(one.prepare(banks), x, weights, ids)
    total = experts * (experts + 1) // 2
    wanted = (GATE * total * ups).to(torch.bfloat16).to(device)  # up to 4,320 = 135 * 2^5: exact
    wrong = (out != wanted[:, None]).any(1).nonzero()
    assert not len(wrong), f"{len(wrong)} of {tokens} rows are wrong, first {wrong[0].item()}"


@pytest.mark.fault("sgl-project/sglang#4727")
@pytest.mark.parametrize("split_k", [1, 2])
def test_a_linear_layer_whose_rows_end_beyond_2_31(split_k: int, device):
    """x [2,113, 2^20] is 0 but for its first and its last element, which weigh 1 and 2."""
    m, k = 2_049 + 64, 2**20
    x = passing.tokens([5.0] * m, _ups(m).tolist(), k, torch.bfloat16, device)
    packed = torch.zeros(40, k // 2, dtype=torch.uint8, device=device)
    packed[:, 0], packed[:, -1] = 0x02, 0x40  # code 2 is 1.0 and code 4 is 2.0
    scale = torch.ones(40, k // 16, device=device).to(torch.float8_e4m3fn)
    plan = plan_linear(gpus.current(0), m, 40, k, split_k=split_k)
    out = linear.run(plan, x, packed, scale, torch.ones(40, device=device))
    assert torch.equal(out, (5 + 2 * _ups(m)).to(torch.bfloat16).to(device)[:, None].expand(m, 40))


@pytest.mark.fault("sgl-project/sglang#4727")
@pytest.mark.parametrize("kernel", W4A16)
def test_rows_2_20_apart_are_their_copy(kernel: str, device):
    """x is a strided view into 4.3 GB, whose rest is NaN."""
    shape, tokens = shape_of("rows apart", kernel), EDGES["rows apart"][1]
    hidden, ups = shape.hidden, _ups(tokens)
    banks = passing.banks(1, hidden, shape.intermediate, device)
    x = torch.full((tokens, 2**20), torch.nan, dtype=torch.bfloat16, device=device)[:, 1000 : 1000 + hidden]
    x.copy_(passing.tokens([GATE] * tokens, ups.tolist(), hidden, torch.bfloat16, device))
    ids, weights = torch.zeros(tokens, 1, dtype=torch.int32, device=device), torch.ones(tokens, 1, device=device)
    one = KERNELS[kernel]
    out = one.run(one.prepare(banks), x, weights, ids)
    assert torch.equal(out, (GATE * ups).to(torch.bfloat16).to(device)[:, None].expand(tokens, hidden))
