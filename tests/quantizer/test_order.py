"""The order of operations in the quantizer: inputs at which any other order of the same formula shows."""

from collections.abc import Callable

import pytest
import torch

from nvfp4_suite.reference import formats
from nvfp4_suite.reference import quantize as reference

from .test_quantize import expected, quantized

VLLM = reference.RECIPES["vllm"]
SIXTH = reference.SIXTH
SIX = torch.tensor(6.0)  # a tensor, or torch would multiply by its reciprocal
ULPS = torch.arange(-3, 4, dtype=torch.int32)
MANTISSAS = torch.arange(129, 256).float()  # of bf16, all bits of it in use

# Of S * (amax * (1/6)).
SCALES: dict[str, Callable] = {
    "S * (amax / 6)": lambda amax, s: s * (amax / SIX),
    "(S * amax) * (1/6)": lambda amax, s: (s * amax) * SIXTH,
    "(S * amax) / 6": lambda amax, s: (s * amax) / SIX,
    "(S * (1/6)) * amax": lambda amax, s: (s * SIXTH) * amax,
}
# Of x * (S / scale).
FACTORS: dict[str, Callable] = {
    "(x * S) / scale": lambda x, s, scale: (x * s) / scale,
    "x / (scale / S)": lambda x, s, scale: x / (scale / s),
    "x * (1 / (scale / S))": lambda x, s, scale: x * (scale / s).reciprocal(),
    "x * (S * (1 / scale))": lambda x, s, scale: x * (s * scale.reciprocal()),
    "x * (1 / (scale * (1 / S)))": lambda x, s, scale: x * (scale * s.reciprocal()).reciprocal(),
}
AMAX = 384.0  # of the blocks for FACTORS: 6 * 64


def near(x: torch.Tensor) -> torch.Tensor:
    """fp32 `x` [...], and what is up to three units of its last place away: [..., 7]."""
    return (x.float().view(torch.int32)[..., None] + ULPS).view(torch.float32)


def check(rows: torch.Tensor, stored: torch.Tensor, telling: torch.Tensor, device: str) -> None:
    """Of the inputs that are `telling`, three from all over them."""
    places = telling.nonzero()
    assert len(places) >= 3
    for place in places[:: len(places) // 3].tolist():
        x, s = rows[tuple(place)].to(torch.bfloat16)[None], stored[tuple(place)].item()
        for found, right in zip(quantized(x, s, device), expected(x, s), strict=True):
            assert torch.equal(found, right)


@pytest.mark.parametrize("order", SCALES)
def test_a_block_scale(order: str, device):
    """S * amax / 6 lies at the middle between two block scales, or a rounding beside it."""
    middles = torch.arange(8, 16) + 0.5
    stored = near(middles[:, None].double() * 6 / MANTISSAS.double())
    amax = MANTISSAS[None, :, None].expand_as(stored)
    telling = VLLM.block_scale(amax, stored) != formats.encode_e4m3(SCALES[order](amax, stored))
    check(amax[..., None].expand(*amax.shape, 16), stored, telling, device)


@pytest.mark.parametrize("order", FACTORS)
def test_a_code(order: str, device):
    """x * S / scale lies at the middle between two codes, or a rounding beside it, in a block with an amax of 384."""
    scales, middles = torch.arange(8, 16).double(), torch.tensor(reference.E2M1_MIDPOINTS).double()
    stored = near(scales[:, None, None] * middles[:, None] / MANTISSAS.double())
    scale = VLLM.block_scale(torch.full_like(stored, AMAX), stored)
    x = MANTISSAS[None, None, :, None].expand_as(stored)
    rows = torch.stack([x, -x, torch.full_like(x, AMAX)], dim=-1)[..., [0, 1, 2] + [0] * 13]
    right = VLLM.codes(rows, scale, stored)[..., 0]
    wrong = formats.encode_e2m1(FACTORS[order](x, stored, formats.decode_e4m3(scale)))
    check(rows, stored, (right != wrong) & (scale != 0) & (scale < 0x7E), device)
