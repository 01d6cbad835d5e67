"""Casts in the repaired interpreter, over every code and every rounding boundary, against integer arithmetic.

With `--engine gpu` the same tests show that a GPU casts likewise.
"""

import numpy as np
import pytest
import torch
from triton.runtime.errors import InterpreterError

from . import rounding
from .rounding import BF16, E4M3, FP16, all_codes, cast, fp32, is_nan, magnitudes, rounded

NAMES = {BF16: "bf16", FP16: "fp16", E4M3: "e4m3"}.get
PAIRS = [(BF16, FP16), (BF16, E4M3), (FP16, BF16), (FP16, E4M3), (E4M3, BF16), (E4M3, FP16)]


def assert_cast(codes, got, expected, nan, target):
    """Every code of `got` is the expected one, or a NaN of `target` where `nan` holds: of e4m3 the positive one."""
    right = np.where(nan, got == 0x7F if target is E4M3 else is_nan(got, target), got == expected)
    wrong = np.flatnonzero(~right)
    assert not wrong.size, (
        f"{wrong.size} of {codes.size} casts are wrong; the first is {codes[wrong[0]]:#x} -> {got[wrong[0]]:#x}, "
        f"should be {'a NaN' if nan[wrong[0]] else hex(expected[wrong[0]])}"
    )


@pytest.mark.parametrize(
    ("number", "target", "code"),
    [
        (1.0, BF16, 0x3F80),
        (1 + 2**-8, BF16, 0x3F80),  # a tie, and the next one goes up
        (1 + 3 * 2**-8, BF16, 0x3F82),
        (-(2.0**128 - 2.0**119), BF16, 0xFF80),
        (3 * 2.0**-134, BF16, 0x0002),
        (65519.0, FP16, 0x7BFF),
        (65520.0, FP16, 0x7C00),
        (2.0**-25, FP16, 0x0000),
        (0.1240234375, E4M3, 0x20),  # carries into the exponent
        (-464.0, E4M3, 0xFE),
        (2.0**-10, E4M3, 0x00),
        (3 * 2.0**-10, E4M3, 0x02),
    ],
)
def test_integer_arithmetic_on_numbers_rounded_by_hand(number, target, code):
    assert rounded(fp32([number]), target) == [code]


@pytest.mark.parametrize("target", [BF16, FP16, E4M3], ids=NAMES)
def test_fp32_is_rounded_to_nearest_even(target, device):
    codes = np.concatenate([rounding.upper_halves(), rounding.boundaries(target)])
    got = cast(codes, torch.float32, target.torch, device)
    assert_cast(codes, got, rounded(codes, target), magnitudes(codes) > 0x7F800000, target)


@pytest.mark.parametrize("target", [BF16, FP16], ids=NAMES)
def test_fp32_is_rounded_toward_zero_on_request(target, device):
    codes = np.concatenate([rounding.upper_halves(), rounding.boundaries(target)])
    got = cast(codes, torch.float32, target.torch, device, rounding="rtz")
    assert_cast(codes, got, rounded(codes, target, toward_zero=True), magnitudes(codes) > 0x7F800000, target)


def test_rounding_toward_zero_to_e4m3_is_refused_since_it_does_not_compile():
    with pytest.raises(InterpreterError, match="should be 'rtne'"):
        cast(fp32([1.0]), torch.float32, E4M3.torch, "cpu", rounding="rtz")


def test_a_format_that_the_repair_leaves_out_is_refused():
    with pytest.raises(InterpreterError, match="got fp8e5"):
        cast(fp32([1.0]), torch.float32, torch.float8_e5m2, "cpu")


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=NAMES)
def test_every_code_of_a_short_format_is_cast_to_the_others(source, target, device):
    codes = all_codes(source)
    got = cast(codes, source.torch, target.torch, device)
    assert_cast(codes, got, rounded(fp32(rounding.values(codes, source)), target), is_nan(codes, source), target)


def test_every_bf16_is_the_upper_half_of_its_fp32(device):
    codes = all_codes(BF16)
    assert np.array_equal(cast(codes, torch.bfloat16, torch.float32, device), codes.astype(np.uint32) << 16)


@pytest.mark.parametrize("source", [FP16, E4M3], ids=NAMES)
def test_every_code_is_read_as_fp32(source, device):
    codes = all_codes(source)
    got = cast(codes, source.torch, torch.float32, device)
    right = np.where(is_nan(codes, source), np.isnan(got.view(np.float32)), got == fp32(rounding.values(codes, source)))
    assert right.all(), f"wrong: codes {codes[~right][:8]} -> {got[~right][:8]}"


def test_every_e4m3_byte_survives_the_way_through_fp32(device):
    codes = all_codes(E4M3)
    back = cast(cast(codes, E4M3.torch, torch.float32, device), torch.float32, E4M3.torch, device)
    assert np.array_equal(back, np.where(codes == 0xFF, 0x7F, codes))
