"""Routes that are no routes, and experts that a token names twice, on layers whose every output is known beforehand."""

import pytest
import torch

from nvfp4_suite.contract.case import Inputs
from nvfp4_suite.kernels.registry import KERNELS

from ..addresses import checked_addresses
from ..engine import on_gpu
from . import passing
from .edges import shape_of
from .gate_up import W4A16
from .subject import run_kernel

every_kernel = pytest.mark.parametrize("kernel", W4A16)


def _outputs(kernel: str, experts: int, gate: float, ups, weights, ids, device: str) -> torch.Tensor:
    """[T, H] fp16: expert e makes gate * up * (e + 1) of a token, and weighs it."""
    shape = shape_of("known sums", kernel)
    banks = passing.banks(experts, shape.hidden, shape.intermediate, device)
    x = passing.tokens([gate] * len(ups), ups, shape.hidden, torch.float16, device)
    with checked_addresses():
        return run_kernel(KERNELS[kernel], Inputs(x, banks, weights, ids), device)


@pytest.mark.fault("vllm-project/vllm-xpu-kernels#571")
@every_kernel
def test_ids_outside_the_experts_add_exact_zeros(kernel: str, device):
    """Only the upper bound was tested there, so -1 became an index. Beside the experts lie weights of NaN."""
    ids = torch.tensor([[0, -1], [-1, -1], [1, 0], [2, 1], [3, 2]], dtype=torch.int32)
    weights = torch.tensor([[0.5, 2.0]]).repeat(5, 1)
    out = _outputs(kernel, 2, 64.0, [1.0, 3.0, 5.0, 7.0, 9.0], weights, ids, device)
    first, third, fourth = 64 * 1 * 1 * 0.5, 64 * 5 * (2 * 0.5 + 1 * 2), 64 * 7 * 2 * 2
    assert out[[0, 2, 3]].tolist() == [[value] * out.shape[1] for value in (first, third, fourth)]
    assert (out[[1, 4]].view(torch.int16) == 0).all()  # +0, not -0


# Tokens on either side of each block that 89 experts and top 4 get: 12, 24, 64 and 96 routes per expert.
CROWDS = [2, *on_gpu([256, 257, 266, 267, 533, 534, 1423, 1424, 2135, 2136])]


@pytest.mark.fault("flashinfer-ai/flashinfer#3011")
@pytest.mark.parametrize("tokens", CROWDS)
@every_kernel
def test_an_expert_named_twice_counts_with_both_weights(kernel: str, tokens: int, device):
    """A sort that kept an expert's first slot of a token left the second one to chance there, from 257 tokens."""
    ids = torch.tensor([[5, 88, 88, 65]], dtype=torch.int32).repeat(tokens, 1)
    weights = torch.tensor([[4.0, 0.5, 1.0, 2.0]]).repeat(tokens, 1)
    ups = [1.0 + token % 2 * 2 for token in range(tokens)]
    out = _outputs(kernel, 89, 40.0, ups, weights, ids, device)
    once = 40 * (6 * 4 + 89 * (0.5 + 1) + 66 * 2)
    wanted = torch.tensor([once * up for up in ups], dtype=torch.float64).half()[:, None].expand_as(out)
    assert torch.equal(out, wanted), f"first wrong token {(out != wanted).any(1).nonzero()[0].item()}"
