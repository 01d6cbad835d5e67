"""Sums over even and over odd k meet in the linear layer.

Seen in triton-lang/triton#10821: two dots into one accumulator gave wrong sums from 64 rows on. This layer has one.
"""

import pytest
import torch

from nvfp4_suite.kernels import linear

from ..poison import poisoned_allocations


@pytest.mark.fault("triton-lang/triton#10821")
@pytest.mark.parametrize("split_k", ["auto", 1, 2])
def test_sums_over_even_and_over_odd_k_meet(split_k, device):
    """M, N and K 64, x of 1 at even and of 2 at odd k, all weights 1: 32 * 1 + 32 * 2 = 96."""
    x = torch.tensor([1.0, 2.0], dtype=torch.bfloat16, device=device).repeat(64, 32)
    packed = torch.full((64, 32), 0x22, dtype=torch.uint8, device=device)
    scale = torch.ones(64, 4, device=device).to(torch.float8_e4m3fn)
    with poisoned_allocations():
        out = linear.nvfp4_linear(x, packed, scale, torch.ones(64, device=device), split_k=split_k)
    assert out.shape == (64, 64) and (out == 96).all()
