"""NVFP4 to 16 bits, exactly: e2m1 codes and e4m3 block scales. Triton device functions.

Both formats are placed in the bits of an fp16 whose exponent bias differs from theirs, and one multiplication by a
power of two makes up the difference. Subnormals come right by themselves, and the sign of zero is kept.
"""

import triton
import triton.language as tl

# fp16 reads a code's bits as value * 2^-14 (bias 15 against e2m1's 1) and a scale's as value * 2^-8 (against 7).
_E2M1_REBIAS = tl.constexpr(2.0**14)
_E4M3_REBIAS = tl.constexpr(2.0**8)


@triton.jit
def e2m1_to_fp16(code):
    """The values of 4-bit codes held in integers 0..15, as fp16."""
    code = code.to(tl.uint16)
    bits = ((code & 8) << 12) | ((code & 7) << 9)
    return bits.to(tl.float16, bitcast=True) * _E2M1_REBIAS


@triton.jit
def e4m3_to_fp16(scale):
    """Block scales as fp16, from fp8e4nv (native conversion) or from uint8 (emulated).

    The two agree on all 254 finite bytes; 0x7F and 0xFF are NaN natively and +-480 emulated.
    """
    if scale.dtype == tl.uint8:
        byte = scale.to(tl.uint16)
        bits = ((byte & 0x80) << 8) | ((byte & 0x7F) << 7)
        value = bits.to(tl.float16, bitcast=True) * _E4M3_REBIAS
    else:
        value = scale.to(tl.float16)
    return value


@triton.jit
def dequantize(packed, scale, dtype: tl.constexpr):
    """[N, K] weights in `dtype`, in K order and without global scale, from `packed` [N, K/2] and `scale` [N, K/16].

    e2m1 * e4m3 has at most 6 significant bits and lies between 2^-10 and 2688, so it is exact in fp16 and in bf16.
    """
    ROWS: tl.constexpr = packed.shape[0]
    BYTES: tl.constexpr = packed.shape[1]
    per_byte = tl.broadcast_to(e4m3_to_fp16(scale)[:, :, None], (ROWS, BYTES // 8, 8)).reshape(ROWS, BYTES)
    even = e2m1_to_fp16(packed & 15) * per_byte
    odd = e2m1_to_fp16(packed >> 4) * per_byte
    return tl.join(even, odd).reshape(ROWS, 2 * BYTES).to(dtype)
