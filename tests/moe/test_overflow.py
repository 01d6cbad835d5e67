"""fp16 overflows where the true result of a stage does, not before, and a row that overflows leaves the others alone.

Seen in vllm-project/vllm#37135: sums became fp16 before the global scale made them small, hence infinities and NaN.
"""

import pytest
import torch

from nvfp4_suite.contract.case import Inputs
from nvfp4_suite.kernels.registry import KERNELS

from . import passing
from .gate_up import W4A16, gate_up
from .subject import run_kernel

FP16, INF = torch.float16, torch.inf
every_kernel = pytest.mark.parametrize("kernel", W4A16)


def _largest_weights(device: str) -> tuple[torch.Tensor, ...]:
    """[32, 16], all codes 6, all scales 448; globals of 2^-13, but 1 for the odd rows."""
    packed = torch.full((32, 8), 0x77, dtype=torch.uint8, device=device)
    scale = torch.full((32, 1), 448.0, device=device).to(torch.float8_e4m3fn)
    return packed, scale, torch.tensor([2.0**-13, 1.0], device=device).repeat(16)


@pytest.mark.fault("vllm-project/vllm#37135")
@every_kernel
def test_a_sum_beyond_fp16_is_42_under_a_small_global(kernel: str, device):
    """x 8: 16 * 8 * 6 * 448 = 344,064, times 2^-13 is 42. A global of 1 leaves it infinite, whatever the sign."""
    x = torch.tensor([8.0, -8.0, 0.125], dtype=FP16, device=device)[:, None].expand(3, 16).contiguous()
    out = gate_up(kernel, x, *_largest_weights(device))
    assert out[:, 0::2].tolist() == [[42.0] * 16, [-42.0] * 16, [0.65625] * 16]
    assert out[:, 1::2].tolist() == [[INF] * 16, [-INF] * 16, [5376.0] * 16]


# Tokens: gate, up, the routing weight, and what comes out, as silu is the identity from 40 on.
TOKENS = [
    (40.0, 3.0, 1.0, 120.0),
    (64.0, 1024.0, 1.0, INF),  # 65,536 of the activation
    (64.0, 1023.0, 1.0, 65_472.0),
    (64.0, -1024.0, 1.0, -INF),
    (64.0, -5.0, 0.5, -160.0),
    (64.0, 512.0, 4.0, INF),  # 131,072 of the route
    (64.0, 512.0, 2.0**-3, 4096.0),
]


@pytest.mark.fault("vllm-project/vllm#37135")
@every_kernel
def test_one_rows_overflow_is_its_own(kernel: str, device):
    gates, ups, weights, results = zip(*TOKENS, strict=True)
    x = passing.tokens(gates, ups, 16, FP16, device)
    weights, ids = torch.tensor(weights)[:, None], torch.zeros(len(TOKENS), 1, dtype=torch.int32)
    out = run_kernel(KERNELS[kernel], Inputs(x, passing.banks(1, 16, 16, device), weights, ids), device)
    assert out.tolist() == [[result] * 16 for result in results]


@pytest.mark.fault("vllm-project/vllm#37135")
@every_kernel
def test_routes_add_up_in_fp32(kernel: str, device):
    """65,472 and 4,092 are beyond fp16; with 32,736 less they are 36,828, which fp16 rounds to 36,832."""
    x = passing.tokens([64.0, 64.0], [1023.0, 1023.0], 16, FP16, device)
    weights, ids = torch.tensor([[1.0, 2.0**-4, 0.0], [1.0, 2.0**-4, -0.5]]), torch.zeros(2, 3, dtype=torch.int32)
    out = run_kernel(KERNELS[kernel], Inputs(x, passing.banks(1, 16, 16, device), weights, ids), device)
    assert out.tolist() == [[INF] * 16, [36_832.0] * 16]
