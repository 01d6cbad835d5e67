"""NVFP4 to 16 bits, exactly: e2m1 codes and e4m3 block scales. Triton device functions.

Both formats are placed in the bits of an fp16 whose exponent bias differs from theirs, and one multiplication by a
power of two makes up the difference. Subnormals come right by themselves, and the sign of zero is kept.
"""

import triton
import triton.language as tl

# fp16 reads a code's bits as value * 2^-14 (bias 15 against e2m1's 1) and a scale's as value * 2^-8 (against 7).
_E2M1_REBIAS = tl.constexpr(2.0**14)
_E4M3_REBIAS = tl.constexpr(2.0**8)

# A pair's codes are left at value * 2^-14, and its scales are multiplied by 2^7: the largest, 448, is then 57,344 and
# still an fp16. Products are weight * 2^-7, of at most 6 significant bits and multiples of 2^-17: exact in both dtypes.
_PAIR_SCALE = tl.constexpr(2.0**7)
PAIR_EPILOGUE = tl.constexpr(2.0**14 / 2.0**7)  # what the sums of a pair's products lack


@triton.jit
def e2m1_to_fp16(code):
    """The values of 4-bit codes held in integers 0..15, as fp16."""
    code = code.to(tl.uint16)
    bits = ((code & 8) << 12) | ((code & 7) << 9)
    return bits.to(tl.float16, bitcast=True) * _E2M1_REBIAS


@triton.jit
def e2m1_pair(packed):
    """(even, odd): the values * 2^-14 of both codes of every byte, as fp16, without a multiplication.

    Both codes pass through one 32-bit word, each in a half of its own.
    """
    word = packed.to(tl.uint32)
    word |= word << 12  # the even code in bits 3..0, the odd one in bits 19..16
    bits = ((word & 0x00080008) << 12) | ((word & 0x00070007) << 9)
    even = bits.to(tl.uint16).to(tl.float16, bitcast=True)
    odd = (bits >> 16).to(tl.uint16).to(tl.float16, bitcast=True)
    return even, odd


@triton.jit
def e4m3_to_fp16(scale, FACTOR: tl.constexpr = 1.0, NAN: tl.constexpr = False):
    """Block scales * FACTOR, a power of two, as fp16: from fp8e4nv (native conversion) or from uint8 (emulated).

    The two agree on all 254 finite bytes; 0x7F and 0xFF are NaN natively and, unless NAN, +-480 emulated. Checkpoints
    have none of them, but a quantizer makes 0x7F of a block with a NaN.
    """
    if scale.dtype == tl.uint8:
        byte = scale.to(tl.uint16)
        bits = ((byte & 0x80) << 8) | ((byte & 0x7F) << 7)
        value = bits.to(tl.float16, bitcast=True) * (_E4M3_REBIAS * FACTOR)
        if NAN:
            value = tl.where((byte & 0x7F) == 0x7F, float("nan"), value)
    else:
        value = scale.to(tl.float16)
        if FACTOR != 1.0:
            value = value * FACTOR
    return value


@triton.jit
def scales_of_words(words, dtype: tl.constexpr):
    """[N, 4 * W] block scales of `dtype` (uint8 or fp8e4nv), from `words` int32 [N, W] of four each, little-endian."""
    shift = 8 * tl.arange(0, 4)
    scales = ((words[:, :, None] >> shift[None, None, :]) & 0xFF).to(tl.uint8)
    return scales.reshape(words.shape[0], 4 * words.shape[1]).to(dtype, bitcast=True)


@triton.jit
def dequantize(packed, scale, dtype: tl.constexpr, NAN: tl.constexpr = False):
    """[N, K] weights in `dtype`, in K order and without global scale, from `packed` [N, K/2] and `scale` [N, K/16].

    e2m1 * e4m3 has at most 6 significant bits and lies between 2^-10 and 2688, so it is exact in fp16 and in bf16. With
    NAN, which quantized activations need, a scale of 0x7F is NaN however it is decoded.
    """
    ROWS: tl.constexpr = packed.shape[0]
    BYTES: tl.constexpr = packed.shape[1]
    per_byte = tl.broadcast_to(e4m3_to_fp16(scale, NAN=NAN)[:, :, None], (ROWS, BYTES // 8, 8)).reshape(ROWS, BYTES)
    even = e2m1_to_fp16(packed & 15) * per_byte
    odd = e2m1_to_fp16(packed >> 4) * per_byte
    return tl.join(even, odd).reshape(ROWS, 2 * BYTES).to(dtype)


@triton.jit
def dequantize_pair(packed, scale, dtype: tl.constexpr):
    """(even, odd): the weights * 2^-7 in `dtype`, without global scale, from `packed` and its scales, one a byte."""
    even, odd = e2m1_pair(packed)
    factor = e4m3_to_fp16(scale, _PAIR_SCALE)
    return (even * factor).to(dtype), (odd * factor).to(dtype)


@triton.jit
def dequantize_by_table(packed, scale, table, dtype: tl.constexpr):
    """(even, odd): the weights in `dtype`, without global scale; `table` fp32 [16] holds the values of the codes.

    `scale` is one a byte. Table and scales meet in fp32.
    """
    factor = e4m3_to_fp16(scale).to(tl.float32)
    even = tl.load(table + (packed & 15).to(tl.int32)) * factor
    odd = tl.load(table + (packed >> 4).to(tl.int32)) * factor
    return even.to(dtype), odd.to(dtype)
