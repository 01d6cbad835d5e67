"""The decodes of the two-dot forms and of scale words, exhaustively: every packed byte x every scale byte.

What FreeToken#578 claims of its pairs: codes come as their value * 2^-14, signs included; what enters the dots is the
table's weight * 2^-7; every finite product is exact in bf16. Its GEMMs of K = 272 and 80 are in tests/families.
"""

import pytest
import torch
import triton
import triton.language as tl

from nvfp4_suite.contract.case import torch_dtype
from nvfp4_suite.kernels import experts
from nvfp4_suite.kernels.device.decode import (
    PAIR_EPILOGUE,
    dequantize_by_table,
    dequantize_pair,
    e2m1_pair,
    scales_of_words,
)
from nvfp4_suite.reference import formats

NAN_BYTES = (0x7F, 0xFF)
FINITE = [byte for byte in range(256) if byte not in NAN_BYTES]
NATIVE, EMULATED = torch.float8_e4m3fn, torch.uint8
# What enters the dots is the weight times this share.
every_form = pytest.mark.parametrize(("form", "share"), [("pair", 2.0**-7), ("table", 1.0)], ids=["pair", "table"])


@triton.jit
def _decode_pairs(out, STEP: tl.constexpr):
    """out[byte, 0] and out[byte, 1]: what the two codes of every byte are decoded to."""
    byte = tl.program_id(0) * STEP + tl.arange(0, STEP)
    even, odd = e2m1_pair(byte.to(tl.uint8))
    tl.store(out + 2 * byte, even)
    tl.store(out + 2 * byte + 1, odd)


@triton.jit
def _decode_rows(scale, table, out, ROWS: tl.constexpr, PAIR: tl.constexpr):
    """out[row, k]: every byte 0..255, decoded under scale[row]; k is even for its low code, odd for its high code."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    byte = tl.arange(0, 256)
    codes = tl.broadcast_to(byte[None, :].to(tl.uint8), (ROWS, 256))
    scales = tl.load(scale + row[:, None] + 0 * byte[None, :])
    if PAIR:
        even, odd = dequantize_pair(codes, scales, out.dtype.element_ty)
    else:
        even, odd = dequantize_by_table(codes, scales, table, out.dtype.element_ty)
    place = out + row[:, None] * 512 + 2 * byte[None, :]
    tl.store(place, even)
    tl.store(place + 1, odd)


@triton.jit
def _spread_words(words, out, ROWS: tl.constexpr, WORDS: tl.constexpr):
    row = tl.arange(0, ROWS)
    loaded = tl.load(words + row[:, None] * WORDS + tl.arange(0, WORDS)[None, :])
    scales = scales_of_words(loaded, out.dtype.element_ty)
    tl.store(out + row[:, None] * 4 * WORDS + tl.arange(0, 4 * WORDS)[None, :], scales)


@pytest.fixture(params=[NATIVE, EMULATED], ids=["native", "emulated"])
def e4m3(request) -> torch.dtype:
    """How the kernel sees the scales: as e4m3 or as bytes."""
    return request.param


def _decoded(form: str, e4m3: torch.dtype, dtype: torch.dtype, device: str) -> torch.Tensor:
    """[256 scales, 512 k] as the form hands it to its dots."""
    scale = torch.arange(256, dtype=torch.uint8, device=device).view(e4m3)
    table = experts._code_values(torch.device(device))
    out = torch.full((256, 512), torch.nan, dtype=dtype, device=device)
    _decode_rows[(16,)](scale, table, out, ROWS=16, PAIR=form == "pair")
    return out.cpu()


def _assert_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    wrong = (actual.view(torch.int16) != expected.view(torch.int16)).nonzero()
    assert not len(wrong), f"{len(wrong)} of {actual.numel()} differ, first at {wrong[0].tolist()}"


def test_every_code_of_a_pair_is_its_value_times_2_to_the_minus_14(device):
    """The sign of zero included, and exact in bf16 as well."""
    out = torch.full((256, 2), torch.nan, dtype=torch.float16, device=device)
    _decode_pairs[(2,)](out, STEP=128)
    packed = torch.arange(256, dtype=torch.uint8)[:, None]
    values = formats.decode_e2m1(formats.unpack(packed)) * 2.0**-14
    _assert_bits(out.cpu(), values.to(torch.float16))
    assert torch.equal(values.to(torch.bfloat16).float(), values)
    assert torch.equal(values.to(torch.float16).float(), values)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@every_form
def test_every_byte_times_every_finite_scale_is_its_share_of_the_weight_to_the_bit(form, share, e4m3, dtype, device):
    packed = torch.arange(256, dtype=torch.uint8).repeat(len(FINITE), 1)
    scale = torch.tensor(FINITE, dtype=torch.uint8)[:, None].repeat(1, 32)
    exact = formats.dequantize_blocks(packed, scale) * share
    expected = exact.to(torch_dtype(dtype))
    assert torch.equal(expected.double(), exact)  # 16 bits hold every product, so there is nothing to round
    _assert_bits(_decoded(form, e4m3, torch_dtype(dtype), device)[FINITE], expected)


def test_the_epilogue_of_a_pair_makes_up_for_its_share():
    assert PAIR_EPILOGUE.value == 2.0**7


@every_form
def test_nan_scales_are_nan_natively_and_480_emulated(form, share, e4m3, device):
    actual = _decoded(form, e4m3, torch.bfloat16, device)[list(NAN_BYTES)]
    if e4m3 == NATIVE:
        assert actual.isnan().all()
    else:
        packed = torch.arange(256, dtype=torch.uint8).repeat(2, 1)
        values = formats.decode_e2m1(formats.unpack(packed)) * torch.tensor([[480.0], [-480.0]])
        assert torch.equal(actual.float() / share, values)


@pytest.mark.parametrize("words", [1, 2, 4])
def test_words_spread_to_the_scales_in_their_order(words, e4m3, device):
    rows = 64 // words
    scale = torch.arange(256, dtype=torch.uint8, device=device).view(rows, 4 * words)
    out = torch.zeros_like(scale).view(e4m3)
    _spread_words[(1,)](scale.view(torch.int32), out, ROWS=rows, WORDS=words)
    assert torch.equal(out.view(torch.uint8), scale)
