"""Sums over even and over odd k meet, in the first GEMM as in a whole layer.

Seen in triton-lang/triton#10821: two dots into one accumulator gave wrong sums from 64 rows on.
"""

import pytest
import torch

from nvfp4_suite.kernels.decode import NAME as DECODE

from ..engine import INTERPRETED
from .edges import shape_of
from .gate_up import W4A16, gate_up


@pytest.mark.fault("triton-lang/triton#10821")
@pytest.mark.parametrize("kernel", W4A16)
def test_every_sum_of_64_k_is_96(kernel: str, device):
    """64 rows of one expert, N and K 64, x of 1 at even and of 2 at odd k, all weights 1: 32 * 1 + 32 * 2.

    A kernel that asks for more K has as many times the sum.
    """
    m = 2 if kernel == DECODE and INTERPRETED else 64  # decode has no dot, and each row for itself
    shape = shape_of("one tile", kernel)
    n, k = 2 * shape.intermediate, shape.hidden
    x = torch.tensor([1.0, 2.0], dtype=torch.bfloat16, device=device).repeat(m, k // 2)
    packed = torch.full((n, k // 2), 0x22, dtype=torch.uint8, device=device)
    scale = torch.ones(n, k // 16, device=device).to(torch.float8_e4m3fn)
    out = gate_up(kernel, x, packed, scale, torch.ones(n, device=device))
    assert out.shape == (m, n) and (out == 96 * (k // 64)).all()
