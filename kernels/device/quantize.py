"""fp32 values to NVFP4 with a static global scale, in the steps of vLLM's emulation. Triton device functions.

S = fl(1 / input scale); block scale = e4m3(S * (amax * fl(1/6))); code = e2m1(x * (S / block scale)), all in fp32: see
ref_nvfp4_quant_dequant in vLLM's nvfp4_emulation_utils.py. A block whose scale is 0 keeps nothing but signs; a NaN
makes its block's scale 0x7F and every code of the block 7.

Both roundings are integer arithmetic on the bits of fp32, which every GPU and the interpreter agree on: Triton 3.6 to
3.8 convert fp32 to e4m3 by way of fp16 on sm_89 (triton-lang/triton#11753).
"""

import triton
import triton.language as tl

from .decode import e4m3_to_fp16

_SIXTH = tl.constexpr(0xAAAAAB * 2.0**-26)  # 1/6 as fp32 has it
_FP32_INF = tl.constexpr(0x7F800000)
_TILE_ROWS = tl.constexpr(128)  # of block scales in the 128x4 layout


@triton.jit
def nearest_code(size, MANTISSA: tl.constexpr, LEAST_EXPONENT: tl.constexpr, LARGEST: tl.constexpr):
    """The codes, int32, of a small float format that are nearest to fp32 magnitudes, given as their bits, int32.

    Ties go to the even code, and what is above LARGEST, also NaN, is LARGEST. The format has MANTISSA bits of mantissa
    and its normal numbers begin at fp32's biased LEAST_EXPONENT: below it a code's unit stays the same, so one bit of
    the significand more is dropped for each exponent less.
    """
    exponent = size >> 23
    significand = (size & 0x7FFFFF) | 0x800000
    below = tl.maximum(LEAST_EXPONENT - exponent, 0)
    dropped = tl.minimum(below + (23 - MANTISSA), 25)  # of 24 bits: 25 leave less than half a unit
    kept = significand >> dropped
    half = (significand * 0 + 1) << (dropped - 1)
    rounded = (significand + half - 1 + (kept & 1)) >> dropped
    return tl.minimum(rounded + (tl.maximum(exponent - LEAST_EXPONENT, 0) << MANTISSA), LARGEST)


@triton.jit
def e4m3_byte(x):
    """The bytes, uint8, of the e4m3 nearest to non-negative fp32: ties to even, saturating at 448, NaN 0x7F."""
    size = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.where(size > _FP32_INF, 0x7F, nearest_code(size, 3, 121, 0x7E)).to(tl.uint8)


@triton.jit
def e2m1_code(x):
    """The codes, int32, of the e2m1 nearest to fp32: ties to even, saturating at 6, the sign of zero kept, NaN 7."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    return tl.where(size > _FP32_INF, 7, nearest_code(size, 1, 127, 7) | (bits >> 28) & 8)


@triton.jit
def quantize_blocks(x, stored):
    """(packed uint8 [R, K/2], scale uint8 [R, K/16]) of fp32 `x` [R, K]; `stored` is the scalar S."""
    ROWS: tl.constexpr = x.shape[0]
    K: tl.constexpr = x.shape[1]
    blocks = x.reshape(ROWS, K // 16, 16)
    size = blocks.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    amax = tl.max(size, axis=2).to(tl.float32, bitcast=True)  # of integers: a maximum of floats may lose a NaN
    scale = e4m3_byte(stored * (amax * _SIXTH))
    factor = tl.div_rn(stored, e4m3_to_fp16(scale, NAN=True).to(tl.float32))
    factor = tl.where(scale == 0, 0.0, factor)
    codes = e2m1_code(blocks * factor[:, :, None])
    even, odd = tl.split(codes.reshape(ROWS, K // 2, 2))
    return (even | (odd << 4)).to(tl.uint8), scale


@triton.jit
def scale_place(row, column, columns, SWIZZLED: tl.constexpr):
    """Where a block scale of a matrix with `columns` of them a row is stored: int64, in bytes.

    SWIZZLED is cuBLAS's layout of 1D block scales: tiles of 128 rows x 4 columns, in which 32 rows interleave.
    """
    if SWIZZLED:
        tile = row // _TILE_ROWS * tl.cdiv(columns, 4) + column // 4
        return tile * 512 + row % 32 * 16 + row // 32 % 4 * 4 + column % 4
    return row * columns + column


@triton.jit(do_not_specialize=["rows"])
def quantize_rows(
    x,
    stored,
    packed,
    scale,
    rows,
    columns,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SWIZZLED: tl.constexpr,
):
    """packed [rows, columns/2] and scale of `x` [rows, columns], with `stored` fp32 [1]; columns is a multiple of 16.

    One program: BLOCK_M rows x BLOCK_K columns. SWIZZLED scales are padded to whole tiles, which the grid then covers;
    padding is written as 0, because whoever multiplies tiles reads it, and 0 x NaN is NaN.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    values = tl.load(x + row[:, None] * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
    codes, scales = quantize_blocks(values, tl.load(stored))

    byte = tl.program_id(1) * (BLOCK_K // 2) + tl.arange(0, BLOCK_K // 2)
    in_bytes = (row < rows)[:, None] & (byte < columns // 2)[None, :]
    tl.store(packed + row[:, None] * (columns // 2) + byte[None, :], codes, mask=in_bytes)

    block = tl.program_id(1) * (BLOCK_K // 16) + tl.arange(0, BLOCK_K // 16)
    blocks = columns // 16
    end_row, end_block = rows, blocks
    if SWIZZLED:
        end_row, end_block = tl.cdiv(rows, _TILE_ROWS) * _TILE_ROWS, tl.cdiv(blocks, 4) * 4
        scales = tl.where((row < rows)[:, None] & (block < blocks)[None, :], scales, 0)
    place = scale_place(row[:, None], block[None, :], blocks, SWIZZLED)
    tl.store(scale + place, scales, mask=(row < end_row)[:, None] & (block < end_block)[None, :])
