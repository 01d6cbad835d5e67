"""For the tests beside it: rounding by integer arithmetic, the inputs where it can go wrong, a kernel that casts."""

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

BLOCK = 4096


class Format(NamedTuple):
    torch: torch.dtype
    mantissa: int  # stored bits
    exponent_min: int  # of the smallest normal number
    largest: int  # code of the largest finite number
    overflow: int  # code that a larger number rounds to


BF16 = Format(torch.bfloat16, 7, -126, 0x7F7F, 0x7F80)
FP16 = Format(torch.float16, 10, -14, 0x7BFF, 0x7C00)
E4M3 = Format(torch.float8_e4m3fn, 3, -6, 0x7E, 0x7E)


def code_type(dtype: torch.dtype) -> type:
    return {1: np.uint8, 2: np.uint16, 4: np.uint32}[dtype.itemsize]


def all_codes(source: Format) -> np.ndarray:
    return np.arange(1 << 8 * source.torch.itemsize, dtype=code_type(source.torch))


def magnitudes(codes: np.ndarray) -> np.ndarray:
    """The codes without their sign bit, as int64."""
    return codes.astype(np.int64) & (np.iinfo(codes.dtype).max >> 1)


def is_nan(codes: np.ndarray, source: Format) -> np.ndarray:
    return magnitudes(codes) > source.overflow


def values(codes: np.ndarray, source: Format) -> np.ndarray:
    """The numbers that `codes` stand for, as float64, where all of them are exact."""
    magnitude = magnitudes(codes)
    field = magnitude >> source.mantissa
    significand = magnitude - (np.maximum(field - 1, 0) << source.mantissa)
    exponent = np.maximum(field, 1) - 1 + source.exponent_min - source.mantissa
    finite = np.ldexp(significand.astype(np.float64), exponent)
    numbers = np.select([magnitude <= source.largest, ~is_nan(codes, source)], [finite, np.inf], np.nan)
    return np.where(magnitude == codes, numbers, -numbers)


def fp32(numbers) -> np.ndarray:
    """The codes of numbers that fp32 holds exactly; a larger one becomes infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(numbers, np.float64).astype(np.float32).view(np.uint32)


def rounded(fp32_codes: np.ndarray, target: Format, toward_zero: bool = False) -> np.ndarray:
    """The codes in `target` of fp32 numbers, to nearest even or toward zero. What it gives for a NaN means nothing."""
    magnitude = magnitudes(fp32_codes)
    exponent = np.maximum(magnitude >> 23, 1)  # a subnormal has the exponent of the smallest normal number
    significand = magnitude - ((exponent - 1) << 23)
    binade = np.maximum(exponent - 127, target.exponent_min)
    dropped = np.minimum(binade - target.mantissa - (exponent - 150), 40)  # bits; beyond 25 nothing is left
    kept, rest, half = significand >> dropped, significand & ((1 << dropped) - 1), 1 << (dropped - 1)
    if not toward_zero:
        kept += (rest > half) | ((rest == half) & (kept % 2 == 1))
    code = ((binade - target.exponent_min) << target.mantissa) + kept
    code = np.where(code > target.largest, target.largest if toward_zero else target.overflow, code)
    code = np.where(magnitude == 0x7F800000, target.overflow, code)
    sign = fp32_codes.astype(np.int64) >> 31
    return ((sign << 8 * target.torch.itemsize - 1) | code).astype(code_type(target.torch))


def upper_halves() -> np.ndarray:
    """Every upper half of an fp32 with the lower halves at and beside bf16's rounding boundaries."""
    lower = np.array([0, 1, 0x4000, 0x7FFF, 0x8000, 0x8001, 0xC000, 0xFFFF], np.uint32)
    return ((np.arange(1 << 16, dtype=np.uint32) << 16)[:, None] | lower).ravel()


def boundaries(target: Format) -> np.ndarray:
    """The fp32 codes of every finite number of `target`, of every midpoint, and of one ulp below and above each."""
    exact = values(np.arange(target.largest + 1, dtype=code_type(target.torch)), target)
    beyond = 2 * exact[-1] - exact[-2]  # the number that would come next
    middle = fp32((exact + np.append(exact[1:], beyond)) / 2)
    positive = np.concatenate([fp32(exact), middle - 1, middle, middle + 1, fp32([beyond, 2 * beyond, np.inf])])
    return np.concatenate([positive, positive | 0x80000000])


@triton.jit
def _cast(source, target, n, ROUNDING: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(source + at, mask=at < n)
    tl.store(target + at, x.to(target.dtype.element_ty, fp_downcast_rounding=ROUNDING), mask=at < n)


def cast(codes: np.ndarray, source: torch.dtype, target: torch.dtype, device: str, rounding=None) -> np.ndarray:
    """The codes that a kernel stores when it casts `codes` of dtype `source` to dtype `target`."""
    x = torch.from_numpy(codes).view(source).to(device)
    y = torch.full((codes.size * target.itemsize,), 0x5A, dtype=torch.uint8, device=device).view(target)
    _cast[(triton.cdiv(codes.size, BLOCK),)](x, y, codes.size, rounding, BLOCK)
    return y.cpu().view(torch.uint8).numpy().view(code_type(target))
