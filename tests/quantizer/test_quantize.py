"""The quantizer kernel against reference.quantize's recipe "vllm", byte for byte, from poisoned buffers."""

from itertools import product

import pytest
import torch

from nvfp4_suite.contract.case import hashed, torch_dtype
from nvfp4_suite.contract.kernel import DTYPES
from nvfp4_suite.kernels.quantizer import LAYOUTS, quantize
from nvfp4_suite.reference import formats
from nvfp4_suite.reference import layout as layouts
from nvfp4_suite.reference import quantize as reference

from ..engine import on_gpu
from ..poison import poisoned_allocations

# Rows and columns of scales on either side of tiles of 128 x 4, in which each 32 rows begin anew.
SIZES = [(1, 16, "128x4"), (33, 144, "128x4"), (129, 48, "128x4"), (127, 80, "linear"), (9, 2064, "linear")]
SIZES += on_gpu(list(product((1, 33, 127, 129, 1000), (16, 48, 80, 144, 2064, 7168), LAYOUTS)))
STORED = [("bf16", 0.7431), ("bf16", 2.0**-20), ("fp16", 1.0)]
STORED += on_gpu(list(product(DTYPES, (0.01, 37.3, 3e4, 2.0**100, 2.0**-100))))
TIES = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def quantized(x: torch.Tensor, stored: float, device: str, layout: str = "linear") -> tuple[torch.Tensor, torch.Tensor]:
    with poisoned_allocations():
        packed, scale = quantize(x.to(device), torch.tensor([stored], device=device), layout=layout)
    return packed.cpu(), scale.cpu()


def expected(x: torch.Tensor, stored: float) -> tuple[torch.Tensor, torch.Tensor]:
    return reference.quantize(x, torch.tensor(stored), "vllm")


def check(x: torch.Tensor, stored: float, device: str, layout: str = "linear") -> None:
    packed, scale = expected(x, stored)
    found_packed, found_scale = quantized(x, stored, device, layout)
    if layout != "linear":
        scale = layouts.to_tiled(scale, layout)  # its padding is 0x00
    assert torch.equal(found_scale, scale)
    assert torch.equal(found_packed, packed)


def hard(rows: int, k: int, dtype: str) -> torch.Tensor:
    """Blocks of 30 binades, among them ties, zeros of either sign, underflow, overflow, infinity and NaN."""
    key = f"quantizer/{rows}x{k}"
    bell = ((hashed(key, rows, k // 16, 16, 4) >> 16).sum(-1) - 2 * 0xFFFF).double() / 37_837
    blocks = torch.ldexp(bell, hashed(f"{key}/binade", rows, k // 16, 1) % 30 - 20)
    special = torch.zeros(6, 16, dtype=torch.float64)
    special[0] = torch.cat([TIES, -TIES])
    special[1, 8:] = -0.0
    special[2] = 2.0**-24 * (1 - 2 * (torch.arange(16) % 2))
    special[3] = 60000.0 - 1000 * torch.arange(16)
    special[4, 3], special[5, 3] = torch.inf, torch.nan
    flat = blocks.flatten(0, 1)
    for kind, one in enumerate(special):
        flat[kind * 7 :: 50] = one
    return blocks.flatten(1).to(torch_dtype(dtype))


@pytest.mark.fault("ROCm/aiter#2900")
@pytest.mark.fault("vllm-project/vllm#31097")
@every_dtype
@pytest.mark.parametrize(("rows", "k", "layout"), SIZES)
def test_ragged_rows_and_columns(rows: int, k: int, layout: str, dtype: str, device):
    check(hard(rows, k, dtype), 37.3, device, layout)


@pytest.mark.parametrize(("dtype", "stored"), STORED)
def test_every_16_bit_pattern(dtype: str, stored: float, device):
    """A block holds every 32nd (fp16: 256th) pattern of four binades, so that its smallest codes are 0."""
    apart = {"bf16": 32, "fp16": 256}[dtype]
    patterns = torch.arange(2**16).to(torch.uint16).view(torch.int16).view(-1, 16, apart)
    check(patterns.transpose(1, 2).reshape(16, -1).contiguous().view(torch_dtype(dtype)), stored, device)


@pytest.mark.fault("triton-lang/triton#11753")
@pytest.mark.parametrize(("stored", "byte"), [(1.0625001, 0x39), (1.0625, 0x38), (400.1, 0x7D), (400.0, 0x7C)])
def test_a_scale_is_rounded_once(stored: float, byte: int, device):
    """triton-lang/triton#11753. An amax of 6 makes S itself what is rounded."""
    x = torch.full((1, 16), 6.0, dtype=torch.bfloat16)
    assert quantized(x, stored, device)[1].tolist() == [[byte]]


@pytest.mark.fault("ROCm/aiter#3992")
@every_dtype
def test_ties_go_to_the_even_code(dtype: str, device):
    """ROCm/aiter#3992: away from zero would give other codes for four of the seven."""
    x = torch.cat([TIES, -TIES])[None].to(torch_dtype(dtype))
    packed, scale = quantized(x, 1.0, device)
    codes = [0, 2, 2, 4, 4, 6, 6, 7]
    assert scale.tolist() == [[0x38]]
    assert formats.unpack(packed).tolist() == [codes + [8 | code for code in codes]]


@pytest.mark.fault("NVIDIA/Model-Optimizer#1397")
def test_zeros_and_what_underflows_keep_their_signs(device):
    """S * amax / 6 below 2^-10 is a scale of 0: nothing is divided by it."""
    x = torch.zeros(3, 16, dtype=torch.bfloat16)
    x[1], x[2, 5] = -0.0, -(2.0**-9)
    packed, scale = quantized(x, 1.0, device)
    assert (scale == 0).all()
    assert formats.unpack(packed).tolist() == [[0] * 16, [8] * 16, [0] * 5 + [8] + [0] * 10]


@pytest.mark.fault("NVIDIA/Model-Optimizer#1397")
def test_a_nan_takes_its_block_along_and_nothing_else(device):
    x = hard(3, 48, "bf16").nan_to_num()
    dirty = x.clone()
    dirty[1, 20] = torch.nan
    (packed, scale), (dirty_packed, dirty_scale) = (quantized(one, 1.0, device) for one in (x, dirty))
    assert dirty_scale[1, 1] == 0x7F and (dirty_packed[1, 8:16] == 0x77).all()
    dirty_scale[1, 1], dirty_packed[1, 8:16] = scale[1, 1], packed[1, 8:16]
    assert torch.equal(dirty_scale, scale) and torch.equal(dirty_packed, packed)


@pytest.mark.fault("sgl-project/sglang#38773")
def test_no_rows(device):
    assert [list(part.shape) for part in quantized(torch.zeros(0, 48).half(), 1.0, device)] == [[0, 24], [0, 3]]
    assert quantized(torch.zeros(0, 48).half(), 1.0, device, "128x4")[1].shape == (0,)


def test_a_strided_and_a_misaligned_input_give_the_bytes_of_their_copy(device):
    x = hard(5, 48, "bf16")
    wide = torch.full((10, 67), torch.nan, dtype=x.dtype)
    wide[::2, 3:51] = x
    for stored, found in zip(expected(x, 2.0), quantized(wide[::2, 3:51], 2.0, device), strict=True):
        assert torch.equal(stored, found)


@pytest.mark.parametrize(
    ("x", "stored", "options", "error", "message"),
    [
        (torch.zeros(2, 16), torch.ones(1), {}, TypeError, "x is torch.float32, but should be torch.bfloat16"),
        (torch.zeros(2, 24).half(), torch.ones(1), {}, ValueError, r"x has shape \[2, 24\], but should be \[M, K\]"),
        (torch.zeros(16).half(), torch.ones(1), {}, ValueError, r"x has shape \[16\]"),
        (torch.zeros(2, 16).half(), torch.ones(1).half(), {}, TypeError, "stored is torch.float16"),
        (torch.zeros(2, 16).half(), torch.ones(2), {}, ValueError, r"stored has shape \[2\], but should be \[1\]"),
        (torch.zeros(2, 16).half(), torch.ones(1), {"layout": "8x4"}, ValueError, "layout is '8x4', but should be one"),
    ],
)
def test_what_is_wrong_is_named(x, stored, options, error, message, device):
    with pytest.raises(error, match=message):
        quantize(x.to(device), stored.to(device), **options)
