"""The kernels' own decode, exhaustively: every packed byte x every scale byte, both nibbles, to bf16 and fp16."""

import pytest
import torch
import triton
import triton.language as tl

from nvfp4_suite.contract.case import torch_dtype
from nvfp4_suite.kernels.device.decode import dequantize
from nvfp4_suite.reference import formats

NAN_BYTES = (0x7F, 0xFF)
FINITE = [byte for byte in range(256) if byte not in NAN_BYTES]


@triton.jit
def _dequantize_rows(packed, scale, out, ROWS: tl.constexpr, BYTES: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    codes = tl.load(packed + row[:, None] * BYTES + tl.arange(0, BYTES)[None, :])
    scales = tl.load(scale + row[:, None] * (BYTES // 8) + tl.arange(0, BYTES // 8)[None, :])
    k = tl.arange(0, 2 * BYTES)
    tl.store(out + row[:, None] * 2 * BYTES + k[None, :], dequantize(codes, scales, out.dtype.element_ty))


@pytest.fixture(params=["native", "emulated"])
def e4m3(request) -> torch.dtype:
    """How the kernel sees the scales: as e4m3 or as bytes."""
    return {"native": torch.float8_e4m3fn, "emulated": torch.uint8}[request.param]


@pytest.fixture
def every_pair():
    """packed [256, 256] holds every byte in every row; scale [256, 32] holds the row's own number."""
    packed = torch.arange(256, dtype=torch.uint8).repeat(256, 1)
    return packed, torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, 32)


def _decoded(packed, scale, e4m3, dtype, device) -> torch.Tensor:
    out = torch.full((256, 512), torch.nan, dtype=torch_dtype(dtype), device=device)
    _dequantize_rows[(16,)](packed.to(device), scale.to(device).view(e4m3), out, ROWS=16, BYTES=256)
    return out.cpu()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_every_byte_times_every_finite_scale_is_the_reference_to_the_bit(every_pair, e4m3, dtype, device):
    packed, scale = every_pair
    exact = formats.dequantize_blocks(packed, scale)[FINITE]
    expected = exact.to(torch_dtype(dtype))
    assert torch.equal(expected.double(), exact)  # 16 bits hold every product, so there is nothing to round
    actual = _decoded(packed, scale, e4m3, dtype, device)[FINITE]
    wrong = (actual.view(torch.int16) != expected.view(torch.int16)).nonzero()
    assert not len(wrong), (
        f"{len(wrong)} of {actual.numel()} differ, first at {wrong[0].tolist()} [scale, k of byte k/2]"
    )


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_nan_scales_are_nan_natively_and_480_emulated(every_pair, e4m3, dtype, device):
    packed, scale = every_pair
    actual = _decoded(packed, scale, e4m3, dtype, device)[list(NAN_BYTES)]
    if e4m3 == torch.float8_e4m3fn:
        assert actual.isnan().all()
    else:
        values = formats.decode_e2m1(formats.unpack(packed[:2])) * torch.tensor([[480.0], [-480.0]])
        assert torch.equal(actual.float(), values)
