"""Tensors of more than 2^31 elements: offsets into banks and activations need 64 bits."""

import pytest
import torch

from nvfp4_suite.contract.banks import ExpertBanks
from nvfp4_suite.contract.kernel import Kernel
from nvfp4_suite.kernels.registry import KERNELS
from nvfp4_suite.reference import judge

from ..moe.edges import EDGES, shape_of
from ..moe.gate_up import activates

pytestmark = pytest.mark.usefixtures("whole_share")
every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())


def _banks(experts: int, hidden: int, intermediate: int, device: str) -> ExpertBanks:
    """Random codes under scales of 1; the globals keep the results near 1."""
    generator = torch.Generator(device).manual_seed(hidden)

    def matrix(rows: int, k: int):
        packed = torch.randint(0, 256, (experts, rows, k // 2), dtype=torch.uint8, device=device, generator=generator)
        scale = torch.full((experts, rows, k // 16), 0x38, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)
        return packed, scale, torch.full((experts, rows), 0.3 / k**0.5, device=device)

    input_scales = [torch.full((experts,), 4 / 2688, device=device) for _ in range(2)]
    return ExpertBanks(*matrix(2 * intermediate, hidden), *matrix(hidden, intermediate), *input_scales)


@pytest.mark.fault("sgl-project/sglang#4727")
@every_kernel
def test_a_bank_of_more_than_2_31_bytes(kernel: Kernel, device):
    """Expert 2's gate_up begins at byte 2^31; alone, the same expert has small offsets."""
    shape = shape_of("a large bank", kernel.name)
    banks = _banks(shape.experts, shape.hidden, shape.intermediate, device)
    assert banks.gate_up_packed[0].numel() * 2 == 2**31
    alone = ExpertBanks(*(tensor[2:].clone() for tensor in vars(banks).values()))
    x = torch.randn(3, shape.hidden, device=device).to(torch.bfloat16)
    weights = torch.ones(3, 1, device=device)
    two, zero = (torch.full((3, 1), expert, dtype=torch.int32, device=device) for expert in (2, 0))
    found = kernel.run(kernel.prepare(banks), x, weights, two)
    judge.bitwise(found, kernel.run(kernel.prepare(alone), x, weights, zero), kernel=kernel.name)


@pytest.mark.fault("sgl-project/sglang#4727")
@every_kernel
def test_activations_of_more_than_2_31_elements(kernel: Kernel, device):
    """Equal tokens give equal rows, the last one behind 2.16e9 elements of gate_up, where the kernel stores it.

    A GEMM that stores the activation of gate and up, half as many, gets twice the tokens.
    """
    stored = 1 if activates(kernel.name) else 2
    shape, tokens = shape_of("large activations", kernel.name), EDGES["large activations"][1] * 2 // stored
    banks = _banks(shape.experts, shape.hidden, shape.intermediate, device)
    assert tokens * stored * banks.intermediate > 2**31
    x = torch.randn(1, shape.hidden, device=device).to(torch.bfloat16).expand(tokens, shape.hidden)
    weights, ids = torch.ones(tokens, 1, device=device), torch.zeros(tokens, 1, dtype=torch.int32, device=device)
    out = kernel.run(kernel.prepare(banks), x, weights, ids)
    judge.bitwise(out, out[:1].expand_as(out), kernel=kernel.name)
