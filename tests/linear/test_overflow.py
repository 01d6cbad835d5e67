"""fp16 in the linear layer: it overflows where the result does, and a row that overflows leaves the others alone.

Seen in vllm-project/vllm#37135: sums became fp16 before the global scale made them small, hence infinities and NaN.
"""

import pytest
import torch

from nvfp4_suite.kernels import linear
from nvfp4_suite.kernels.linear_plan import plan_linear

from ..moe.gate_up import CARD
from ..poison import poisoned_allocations

INF = torch.inf


@pytest.mark.fault("vllm-project/vllm#37135")
@pytest.mark.parametrize(("planned", "split_k"), [(1, "auto"), (3, 1), (3, 2)], ids=["gemv", "one part", "two parts"])
@pytest.mark.parametrize("k", [16, 128])  # 128 has two parts that are not empty
def test_a_sum_beyond_fp16_is_42_under_a_small_global(k: int, planned: int, split_k, device):
    """x 8, codes 6, scale 448: 16 of K make 344,064, times 2^-13 is 42; of a larger K the rest of x is 0."""
    x = torch.zeros(3, k, dtype=torch.float16, device=device)
    x[:, :8] = x[:, -8:] = torch.tensor([8.0, -8.0, 0.125], device=device)[:, None]
    packed = torch.full((2, k // 2), 0x77, dtype=torch.uint8, device=device)
    scale = torch.full((2, k // 16), 448.0, device=device).to(torch.float8_e4m3fn)
    plan = plan_linear(CARD, planned, 2, k, dtype="fp16", split_k=split_k)  # a GEMV's takes any number of rows
    with poisoned_allocations():
        out = linear.run(plan, x, packed, scale, torch.tensor([2.0**-13, 1.0], device=device))
    assert out.tolist() == [[42.0, INF], [-42.0, -INF], [0.65625, 5376.0]]
