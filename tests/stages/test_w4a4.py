"""The W4A4 down GEMM alone, on inputs richer than a layer can have them, bit for bit."""

import pytest
import torch
import triton

from nvfp4_suite.cases.stages import GEMMS, GemmCase
from nvfp4_suite.contract.case import torch_dtype
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.reference import judge, moe
from nvfp4_suite.reference.rounding import rounding_form

from ..engine import INTERPRETED
from . import w4a4_launches as launches
from .launches import CARDS, drawn

W4A4 = [case for case in GEMMS if case.format == "w4a4"]
NATIVE_DOT = INTERPRETED and tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 8)
RTX_5090 = Gpu("NVIDIA GeForce RTX 5090", (12, 0))
every_card = pytest.mark.parametrize("gpu", CARDS, ids=lambda gpu: gpu.name)


def together(gemms: list) -> tuple:
    """(rows, weights, routing) of one grouped GEMM of all `gemms`: a row of x for each route, in turns."""
    rows = tuple(
        torch.stack([getattr(one, name) for one in gemms], 1).flatten(0, 1) for name in ("x_packed", "x_scale")
    )
    banks = [torch.cat([getattr(one.weights, name) for one in gemms]) for name in ("packed", "scale")]
    alpha = torch.cat([one.weights.alpha(one.input_scale) for one in gemms]).float()
    topk_weights = torch.stack([one.topk_weights for one in gemms], 1).flatten()[:, None]
    ids = torch.arange(len(gemms), dtype=torch.int32).repeat(len(rows[0]) // len(gemms))[:, None]
    return rows, (banks[0], banks[1].view(torch.float8_e4m3fn), alpha), (topk_weights, ids)


@every_card
@pytest.mark.parametrize("case", W4A4, ids=lambda case: case.id)
def test_down_gemm(case: GemmCase, gpu: Gpu, device):
    shape = LayerShape(case.experts, 1, case.n, case.k)
    plan = plan_layer(gpu, shape, case.rows, dtype=case.dtype, kernel="w4a4", input_scales=True)
    form, gemms = rounding_form("w4a4", torch_dtype(case.dtype)), drawn(case)
    found = launches.down(plan, *together(gemms), torch_dtype(case.dtype), device)
    for expert, one in enumerate(gemms):
        expected = moe.down(*one.operands(), one.topk_weights.double(), form)
        judge.bitwise(found[expert :: len(gemms)], expected.to(one.dtype), case=case.id, gpu=gpu.name)


@pytest.mark.fault("triton-lang/triton#7549")
@pytest.mark.parametrize("gpu", [*CARDS, *([RTX_5090] if NATIVE_DOT else [])], ids=lambda gpu: gpu.name)
def test_block_scales_are_no_powers_of_two(gpu: Gpu, device):
    """64 products of 1 and 1, each in a block of scale 1, which is byte 0x38: read as a power of two it is 2^-71."""
    plan = plan_layer(gpu, LayerShape(1, 1, 128, 64), 1, kernel="w4a4", input_scales=True)
    codes, scale = (torch.full((128, size), byte, dtype=torch.uint8) for size, byte in ((32, 0x22), (4, 0x38)))
    weights = codes[None], scale[None].view(torch.float8_e4m3fn), torch.ones(1, 128)
    routing = torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int32)
    found = launches.down(plan, (codes[:1], scale[:1]), weights, routing, torch.bfloat16, device)
    assert (found == 64).all()
