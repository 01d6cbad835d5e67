"""What reference.accumulation takes for granted of a matrix unit, asked of this GPU's."""

import pytest
import torch
import triton
import triton.language as tl

from nvfp4_suite.contract.case import hashed, torch_dtype
from nvfp4_suite.reference import formats
from nvfp4_suite.reference.accumulation import likely_sums
from nvfp4_suite.reference.ranges import Range

STEP = 64  # of K
# tl.dot takes mma.sync for 16 rows, and the newer instruction of the architecture, if any, for 64 and 128.
ROWS = (16, 64, 128)


@triton.jit(do_not_specialize=["k"])
def _dot(x, weight, out, k, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    """out[r, n] = sum over k of x[r, k] * weight[n, k], STEP at a time."""
    row, column, step = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, STEP)
    first = tl.program_id(0) * ROWS
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, k, STEP):
        a = tl.load(x + (first + row)[:, None] * k + (start + step)[None, :])
        b = tl.load(weight + column[:, None] * k + (start + step)[None, :])
        total = tl.dot(a, tl.trans(b), total)
    tl.store(out + (first + row)[:, None] * COLUMNS + column[None, :], total)


def dot(x: torch.Tensor, weight: torch.Tensor, rows: int, device: str) -> torch.Tensor:
    """float64 [R, N] as this GPU sums `x` [R, K] times `weight` [N, K] in tiles of `rows`; K a multiple of STEP."""
    out = torch.full((len(x), len(weight)), torch.nan, device=device)
    x, weight = x.to(device), weight.to(device)
    _dot[(len(x) // rows,)](x, weight, out, x.shape[1], ROWS=rows, COLUMNS=len(weight), STEP=STEP)
    return out.cpu().double()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_step_takes_eight_products_and_keeps_a_bit_more_than_fp32(dtype, rows, device):
    """1 and two halves of its last bit, the first and the last of eight: were any of them cut off, 1 would stay 1."""
    x = torch.zeros(rows, STEP, dtype=torch_dtype(dtype))
    x[:, 0], x[:, 1], x[:, 7] = 1, 2.0**-12, 2.0**-12
    weight = torch.zeros(64, STEP, dtype=x.dtype)
    weight[:, 0], weight[:, 1], weight[:, 7] = 1, 2.0**-12, 2.0**-12
    assert (dot(x, weight, rows, device) == 1 + 2.0**-23).all()


def nvfp4_like(key: str, rows: int, k: int, dtype: torch.dtype) -> torch.Tensor:
    """e2m1 * e4m3 over three binades, every code: exact in 16 bits."""
    packed = (hashed(f"{key}/packed", rows, k // 2) & 0xFF).to(torch.uint8)
    scale = (0x30 + hashed(f"{key}/scale", rows, k // 16) % 24).to(torch.uint8)
    return formats.dequantize_blocks(packed, scale).to(dtype)


def bell(key: str, rows: int, k: int) -> torch.Tensor:
    return ((hashed(key, rows, k, 4) >> 16).sum(-1) - 2 * 0xFFFF).double() / 37_837


ACTIVATIONS = {
    "normal": bell,
    "all positive": lambda key, rows, k: bell(key, rows, k).abs(),
    "one channel 1000 times the others": lambda key, rows, k: bell(key, rows, k) * (1 + 999 * (torch.arange(k) == 7)),
    "sixteen binades": lambda key, rows, k: torch.ldexp(bell(key, rows, k), hashed(f"{key}/e", rows, k) % 16 - 12),
}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("k", [64, 2048, 8192])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_sums_stay_inside_the_likely(kind, dtype, k, rows, device, record_property):
    x = ACTIVATIONS[kind](f"{kind} {k}", 128, k).to(torch_dtype(dtype))
    weight = nvfp4_like(f"weight {k}", 64, k, x.dtype)
    likely = likely_sums(Range.point(x.double()), weight.double(), torch.finfo(x.dtype).tiny).range
    exact = x.double() @ weight.double().T
    error = (dot(x, weight, rows, device) - exact).abs() / (likely.upper - exact)
    record_property("error_to_bound", f"median {error.median():.1e}, largest {error.max():.1e}")
    assert error.max() <= 1
    assert error.max() > 0  # a matrix unit that rounds nothing would make this test empty
