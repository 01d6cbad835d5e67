"""The number formats of NVFP4, decoded and encoded by integer arithmetic alone: no cast of any library is trusted.

e2m1 and e4m3 are those of the OCP 8-bit Floating Point (OFP8) and Microscaling Formats (MX) specifications: e2m1 has
neither infinity nor NaN; e4m3 has no infinity, and its only NaNs are 0x7F and 0xFF.
"""

from functools import cache

import torch
from torch import Tensor

BLOCK = 16  # values that share one e4m3 scale


def _minifloat_values(exponent_bits: int, mantissa_bits: int, bias: int) -> Tensor:
    """The values of all non-negative codes of a small float format, as float32; no code is special."""
    code = torch.arange(2 ** (exponent_bits + mantissa_bits))
    exponent, mantissa = code >> mantissa_bits, code & (2**mantissa_bits - 1)
    significand = torch.where(exponent == 0, mantissa, mantissa + 2**mantissa_bits)
    shift = exponent.clamp(min=1) - bias - mantissa_bits
    return torch.ldexp(significand.float(), shift)


_E2M1_MAGNITUDES = _minifloat_values(exponent_bits=2, mantissa_bits=1, bias=1)
_E4M3_MAGNITUDES = _minifloat_values(exponent_bits=4, mantissa_bits=3, bias=7)[:127]  # 0x7F is NaN

E2M1_VALUES = torch.cat([_E2M1_MAGNITUDES, -_E2M1_MAGNITUDES])
_E4M3_HALF = torch.cat([_E4M3_MAGNITUDES, torch.tensor([torch.nan])])
_E4M3_VALUES = torch.cat([_E4M3_HALF, -_E4M3_HALF])


def decode_e2m1(codes: Tensor) -> Tensor:
    """The float32 values of uint8 `codes` in 0..15, in their shape; code 8 is -0.0.

    Raises TypeError for another dtype, ValueError for a code above 15.
    """
    check_dtype("codes", codes, torch.uint8)
    _check_codes(codes)
    return _values(codes)


def encode_e2m1(x: Tensor) -> Tensor:
    """The uint8 code nearest to each float32 of `x`, ties to the even code, saturating at 6; NaN gives code 7.

    The sign of zero is kept: -0.0 and what rounds to it give code 8. Raises TypeError for another dtype.
    """
    check_dtype("x", x, torch.float32)
    codes = _nearest_even(x.abs(), _E2M1_MAGNITUDES) | (torch.signbit(x).to(torch.uint8) << 3)
    return torch.where(x.isnan(), 7, codes)


def decode_e4m3(scale: Tensor) -> Tensor:
    """The float32 values of e4m3 bytes, given as uint8 or float8_e4m3fn, in their shape; 0x7F and 0xFF give NaN.

    Raises TypeError for another dtype.
    """
    check_dtype("scale", scale, torch.uint8, torch.float8_e4m3fn)
    return _e4m3_values(scale.device)[scale.view(torch.uint8).int()]


def encode_e4m3(x: Tensor) -> Tensor:
    """The uint8 e4m3 byte nearest to each float32 of `x`, ties to the even byte, saturating at 448; NaN gives 0x7F.

    The sign of zero is kept. Raises TypeError for another dtype.
    """
    check_dtype("x", x, torch.float32)
    codes = _nearest_even(x.abs(), _E4M3_MAGNITUDES) | (torch.signbit(x).to(torch.uint8) << 7)
    return torch.where(x.isnan(), 0x7F, codes)


def pack(codes: Tensor) -> Tensor:
    """uint8 `codes` [..., K], each 0..15, as bytes [..., K/2]: the low nibble holds the even k.

    Raises TypeError for another dtype, ValueError for an odd K or a code above 15.
    """
    check_dtype("codes", codes, torch.uint8)
    if codes.dim() == 0 or codes.shape[-1] % 2:
        raise ValueError(f"codes has shape {list(codes.shape)}, but its last dimension should be even")
    _check_codes(codes)
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(packed: Tensor) -> Tensor:
    """The codes [..., K] of uint8 `packed` [..., K/2]; the inverse of `pack`. Raises TypeError for another dtype."""
    check_dtype("packed", packed, torch.uint8)
    return torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(-2)


def dequantize_blocks(packed: Tensor, scale: Tensor) -> Tensor:
    """float64 [..., N, K]: e2m1 * scale, without a global scale; exact.

    `packed` is uint8 [..., N, K/2], `scale` uint8 or float8_e4m3fn [..., N, K/16]. Raises TypeError for another dtype,
    ValueError for a shape that does not fit.
    """
    values = _values(unpack(packed))
    wanted = [*values.shape[:-1], values.shape[-1] // BLOCK]
    if values.shape[-1] % BLOCK:
        raise ValueError(f"packed has shape {list(packed.shape)}, but K/2 should be a multiple of {BLOCK // 2}")
    if list(scale.shape) != wanted:
        raise ValueError(f"scale has shape {list(scale.shape)}, but should be {wanted} (one per {BLOCK} values)")
    return (values.unflatten(-1, (-1, BLOCK)) * decode_e4m3(scale).double()[..., None]).flatten(-2)


def dequantize(packed: Tensor, scale: Tensor, global_scale: Tensor) -> Tensor:
    """The weights as float64 [..., N, K]: e2m1 * scale * global; exact (2 + 4 + 24 significant bits).

    `packed` and `scale` as in `dequantize_blocks`; `global_scale` is float32 and broadcasts to the rows [..., N].
    Raises TypeError for another dtype, ValueError for a shape that does not fit.
    """
    check_dtype("global_scale", global_scale, torch.float32)
    weights = dequantize_blocks(packed, scale)
    rows = weights.shape[:-1]
    try:
        per_row = global_scale.double().expand(rows)
    except RuntimeError:
        shape = list(global_scale.shape)
        raise ValueError(f"global_scale has shape {shape}, but should broadcast to the rows {list(rows)}") from None
    return weights * per_row.unsqueeze(-1)


def _values(codes: Tensor) -> Tensor:
    return _e2m1_values(codes.device)[codes.int()]


@cache
def _e2m1_values(device: torch.device) -> Tensor:
    """A copy to a GPU waits for all that it has to do, and layers are decoded an expert at a time."""
    return E2M1_VALUES.to(device)


@cache
def _e4m3_values(device: torch.device) -> Tensor:
    return _E4M3_VALUES.to(device)


def _nearest_even(magnitude: Tensor, values: Tensor) -> Tensor:
    """The uint8 index of the nearest of ascending `values` (of two equally near, the even index); the last if above."""
    midpoints = ((values[:-1] + values[1:]) / 2).to(magnitude.device)  # exact: one bit more than the format has
    magnitude = magnitude.contiguous()  # or bucketize warns
    below = torch.bucketize(magnitude, midpoints, right=False)
    not_above = torch.bucketize(magnitude, midpoints, right=True)  # differs at an exact midpoint only
    return torch.where(below % 2 == 0, below, not_above).to(torch.uint8)


def check_dtype(name: str, tensor: Tensor, *dtypes: torch.dtype) -> None:
    """Raises TypeError unless the argument `name` is a tensor of one of the dtypes."""
    if not isinstance(tensor, Tensor) or tensor.dtype not in dtypes:
        got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(f"{name} is {got}, but should be {' or '.join(map(str, dtypes))}")


def _check_codes(codes: Tensor) -> None:
    if codes.numel() and codes.max() > 15:
        raise ValueError(f"codes holds {int(codes.max())}, but should hold 0 to 15")
