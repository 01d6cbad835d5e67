"""fp16 overflows where the true result of a stage does, not before, and a row that overflows leaves the others alone.

Seen in vllm-project/vllm#37135: sums became fp16 before the global scale made them small, hence infinities and NaN.
"""

import pytest
import torch

from nvfp4_suite.contract.case import Inputs
from nvfp4_suite.kernels.registry import KERNELS

from . import passing
from .edges import shape_of
from .gate_up import W4A16, gate_up
from .subject import run_kernel

FP16, INF = torch.float16, torch.inf
every_kernel = pytest.mark.parametrize("kernel", W4A16)


def _largest_weights(n: int, k: int, device: str) -> tuple[torch.Tensor, ...]:
    """[N, K], the first 16 codes of a row 6, the rest 0, all scales 448; globals of 2^-13, but 1 for the odd rows."""
    packed = torch.zeros(n, k // 2, dtype=torch.uint8, device=device)
    packed[:, :8] = 0x77
    scale = torch.full((n, k // 16), 448.0, device=device).to(torch.float8_e4m3fn)
    return packed, scale, torch.tensor([2.0**-13, 1.0], device=device).repeat(n // 2)


@pytest.mark.fault("vllm-project/vllm#37135")
@every_kernel
def test_a_sum_beyond_fp16_is_42_under_a_small_global(kernel: str, device):
    """x 8: 16 * 8 * 6 * 448 = 344,064, times 2^-13 is 42. A global of 1 leaves it infinite, whatever the sign."""
    shape = shape_of("known sums", kernel)
    n, k = 2 * shape.intermediate, shape.hidden
    x = torch.tensor([8.0, -8.0, 0.125], dtype=FP16, device=device)[:, None].expand(3, k).contiguous()
    out = gate_up(kernel, x, *_largest_weights(n, k, device))
    for first, results in ((0, [42.0, -42.0, 0.65625]), (1, [INF, -INF, 5376.0])):
        assert out[:, first::2].tolist() == [[result] * (n // 2) for result in results]


def _passed(kernel: str, gates, ups, weights, ids, device: str) -> torch.Tensor:
    """[T, H] of one expert that hands gates and ups through."""
    shape = shape_of("known sums", kernel)
    x, banks = (
        passing.tokens(gates, ups, shape.hidden, FP16, device),
        passing.banks(1, shape.hidden, shape.intermediate, device),
    )
    return run_kernel(KERNELS[kernel], Inputs(x, banks, weights, ids), device)


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
    weights, ids = torch.tensor(weights)[:, None], torch.zeros(len(TOKENS), 1, dtype=torch.int32)
    out = _passed(kernel, gates, ups, weights, ids, device)
    assert out.tolist() == [[result] * out.shape[1] for result in results]


@pytest.mark.fault("vllm-project/vllm#37135")
@every_kernel
def test_routes_add_up_in_fp32(kernel: str, device):
    """65,472 and 4,092 are beyond fp16; with 32,736 less they are 36,828, which fp16 rounds to 36,832."""
    weights, ids = torch.tensor([[1.0, 2.0**-4, 0.0], [1.0, 2.0**-4, -0.5]]), torch.zeros(2, 3, dtype=torch.int32)
    out = _passed(kernel, [64.0, 64.0], [1023.0, 1023.0], weights, ids, device)
    assert out.tolist() == [[result] * out.shape[1] for result in (INF, 36_832.0)]
