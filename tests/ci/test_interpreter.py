"""Operations of the repaired interpreter that casts alone do not show: dots, constants, arithmetic, moves, silence.

With `--engine gpu` the tests that take `device` show that a GPU computes likewise.
"""

import warnings

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from .rounding import BF16, E4M3, FP16, all_codes, code_type, fp32, is_nan, rounded, values

BLOCK = 4096
NAMES = {BF16: "bf16", FP16: "fp16", E4M3: "e4m3"}.get


def codes_of(tensor):
    return tensor.cpu().contiguous().view(torch.uint8).numpy().view(code_type(tensor.dtype))


@triton.jit
def _dot(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    at = m[:, None] * N + n
    product = tl.dot(tl.load(a + m[:, None] * K + k), tl.load(b + k[:, None] * N + n), tl.load(c + at))
    tl.store(c + at, product)


@pytest.mark.parametrize(("m", "n", "k"), [(16, 16, 64), (64, 32, 64)])
@pytest.mark.parametrize(("source", "largest"), [(BF16, 255), (FP16, 255), (E4M3, 8)], ids=["bf16", "fp16", "e4m3"])
def test_a_dot_of_integers_is_exact(source, largest, m, n, k, device):
    random = np.random.default_rng(m)
    a, b, c = (random.integers(-largest, largest + 1, shape) for shape in [(m, k), (k, n), (m, n)])
    operands = [torch.from_numpy(each).float().to(source.torch).to(device) for each in (a, b)]
    result = torch.from_numpy(c).float().to(device)
    _dot[(1,)](*operands, result, m, n, k)
    assert np.array_equal(result.cpu().numpy(), a @ b + c)


@triton.jit
def _constants(filled, zeros, VALUE: tl.constexpr):
    at = tl.arange(0, 32)
    tl.store(filled + at, tl.full((32,), VALUE, filled.dtype.element_ty))
    tl.store(zeros + at, tl.zeros((32,), zeros.dtype.element_ty))


@pytest.mark.parametrize("number", [1.5, -2.25, 1 + 3 * 2**-8])  # compiled code flushes a bf16 subnormal
@pytest.mark.parametrize("source", [BF16, FP16], ids=NAMES)
def test_a_constant_is_rounded_to_its_type(source, number, device):
    filled, zeros = (torch.full((32,), 3.0, device=device).to(source.torch) for _ in range(2))
    _constants[(1,)](filled, zeros, number)
    assert np.array_equal(codes_of(filled), np.repeat(rounded(fp32([number]), source), 32))
    assert not codes_of(zeros).any()


@triton.jit
def _arithmetic(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    x, y = tl.load(x + at, mask=mask), tl.load(y + at, mask=mask)
    tl.store(out + at, x + y, mask=mask)
    tl.store(out + n + at, x - y, mask=mask)
    tl.store(out + 2 * n + at, x * y, mask=mask)
    tl.store(out + 3 * n + at, -x, mask=mask)
    tl.store(out + 4 * n + at, tl.abs(x), mask=mask)
    tl.store(out + 5 * n + at, tl.where(x < y, x, y), mask=mask)


def test_bf16_arithmetic_rounds_the_fp32_result(device):
    """x runs over all codes but the zeros, whose negation differs between versions of Triton; y over all of them."""
    x = all_codes(BF16)[(all_codes(BF16) & 0x7FFF) != 0]
    y = x * np.uint16(40503) + np.uint16(12345)
    a, b = (values(each, BF16).astype(np.float32) for each in (x, y))
    with np.errstate(all="ignore"):
        expected = np.stack([a + b, a - b, a * b, -a, np.abs(a), np.where(a < b, a, b)]).view(np.uint32)
    out = torch.empty(expected.shape, dtype=torch.bfloat16, device=device)
    operands = [torch.from_numpy(each).view(torch.bfloat16).to(device) for each in (x, y)]
    _arithmetic[(triton.cdiv(x.size, BLOCK),)](*operands, out, x.size, BLOCK)
    got = codes_of(out).reshape(expected.shape)
    nan = np.isnan(expected.view(np.float32))
    wrong = np.where(nan, ~is_nan(got, BF16), got != rounded(expected, BF16))
    assert not wrong.any(), f"wrong results per operation: {wrong.sum(axis=1)}"


@triton.jit
def _move(x, y, n, OTHER: tl.constexpr, BITS: tl.constexpr):
    at = tl.arange(0, 64)
    halves = tl.join(tl.load(x + at, mask=at < n, other=OTHER), tl.load(x + 63 - at))
    wide = tl.trans(tl.reshape(halves, (2, 64)))
    bits = tl.broadcast_to(wide[None], (2, 64, 2)).to(BITS, bitcast=True)
    slab = tl.arange(0, 2)[:, None, None] * 128 + at[None, :, None] * 2 + tl.arange(0, 2)[None, None, :]
    tl.store(y + slab, bits.to(y.dtype.element_ty, bitcast=True))


@pytest.mark.parametrize("source", [BF16, FP16, E4M3], ids=NAMES)
def test_loads_and_moves_keep_every_bit(source, device):
    bits = tl.int8 if source is E4M3 else tl.int16
    x = np.resize(all_codes(source)[:: 1 if source is E4M3 else 257], 256)
    for codes in x.reshape(4, 64):
        out = torch.zeros(256, dtype=source.torch, device=device)
        _move[(1,)](torch.from_numpy(codes.copy()).view(source.torch).to(device), out, 50, 1.5, bits)
        loaded = np.where(np.arange(64) < 50, codes, rounded(fp32([1.5]), source))
        moved = np.stack([loaded, codes[::-1]], axis=-1).reshape(2, 64).T
        assert np.array_equal(codes_of(out), np.stack([moved, moved]).ravel())


@triton.jit
def _overflow(x, out, half):
    at = tl.arange(0, 8)
    x = tl.load(x + at)
    tl.store(out + at, tl.exp(x))
    tl.store(out + 8 + at, x / (1 + tl.exp(-x)))
    tl.store(out + 16 + at, 1 / (x - x))
    tl.store(half + at, x.to(tl.float16))


def test_overflow_and_nan_do_not_warn(device):
    x = torch.tensor([-np.inf, -1000, -90, 0, 1, 100, 70000, np.inf], dtype=torch.float32, device=device)
    out, half = torch.zeros(3, 8, device=device), torch.zeros(8, dtype=torch.float16, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _overflow[(1,)](x, out, half)
    exponential, silu, inverse = out.cpu().tolist()
    assert exponential[:2] == [0, 0] and exponential[3] == 1 and exponential[5:] == [np.inf] * 3
    assert np.isnan(silu[0]) and silu[1:4] == [0, 0, 0] and silu[5:] == [100, 70000, np.inf]
    assert np.isnan([inverse[0], inverse[7]]).all() and inverse[1:7] == [np.inf] * 6
    assert half.cpu().tolist() == [-np.inf, -1000, -90, 0, 1, 100, np.inf, np.inf]


@triton.jit
def _scaled_dot(a, a_scale, b, b_scale, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k, group = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K // 2), tl.arange(0, K // 16)
    lhs, rhs = tl.load(a + m[:, None] * (K // 2) + k), tl.load(b + n * (K // 2) + k[:, None])
    lhs_scale = tl.load(a_scale + m[:, None] * (K // 16) + group)
    rhs_scale = tl.load(b_scale + n[:, None] * (K // 16) + group)
    product = tl.dot_scaled(lhs, lhs_scale, "e2m1", rhs, rhs_scale, "e2m1")
    tl.store(c + m[:, None] * N + n, product)


def test_a_scaled_dot_reads_e4m3_scales():
    """In the interpreter alone: what a GPU makes of `tl.dot_scaled` belongs to the kernels that use it."""
    m, n, k = 16, 32, 64
    random = np.random.default_rng(0)
    packed = [random.integers(0, 256, (rows, k // 2), dtype=np.uint8) for rows in (m, n)]
    scales = [random.integers(0x38, 0x48, (rows, k // 16), dtype=np.uint8) for rows in (m, n)]
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    a, b = (
        e2m1[np.stack([codes & 15, codes >> 4], axis=-1).reshape(-1, k)] * np.repeat(values(scale, E4M3), 16, axis=1)
        for codes, scale in zip(packed, scales, strict=True)
    )
    operands = [torch.from_numpy(each) for pair in zip(packed, scales, strict=True) for each in pair]
    operands[1::2] = [scale.view(torch.float8_e4m3fn) for scale in operands[1::2]]
    result = torch.empty(m, n)
    if not hasattr(interpreter.InterpreterBuilder, "create_dot_scaled"):  # Triton before 3.8
        with pytest.raises(triton.runtime.errors.InterpreterError):
            _scaled_dot[(1,)](*operands, result, m, n, k)
        return
    _scaled_dot[(1,)](*operands, result, m, n, k)
    assert np.array_equal(result.numpy(), a @ b.T)


def test_loads_and_stores_are_given_masks_of_bool():
    """`&` of a block's and a scalar's comparison is int32, which Triton 3.9 refuses."""
    from nvfp4_suite.ci import interpreter as repair

    given = []
    load = repair._load(lambda ptrs, mask, other, dtype: given.append(mask) or other)
    store = repair._store(lambda ptrs, value, mask: given.append(mask))
    values, mask = np.zeros(3, np.float32), np.array([0, 1, 1], np.int32)
    load(None, mask, values, np.dtype(np.float32))
    store(None, values, mask)
    assert [one.dtype for one in given] == [np.bool_, np.bool_]
    assert np.array_equal(given, [[False, True, True]] * 2)
