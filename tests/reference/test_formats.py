"""The formats against ml_dtypes, an independent implementation, and against the tables of the specifications."""

import itertools

import ml_dtypes
import numpy as np
import pytest
import torch

from nvfp4_suite.reference import formats
from nvfp4_suite.reference.quantize import exact_codes

from .tables import E2M1, E2M1_MIDPOINTS, E4M3

CODES = torch.arange(16, dtype=torch.uint8)
BYTES = torch.arange(256, dtype=torch.uint8)
FINITE_BYTES = BYTES[(BYTES & 0x7F) != 0x7F]
INF, NAN = torch.inf, torch.nan


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({1: torch.uint8, 4: torch.int32, 8: torch.int64}[x.element_size()])


def ml(x: torch.Tensor, dtype) -> torch.Tensor:
    """float32 `x` cast to `dtype` by ml_dtypes, as bytes."""
    return torch.from_numpy(x.numpy().astype(dtype).view(np.uint8))


def next_to(x: torch.Tensor) -> torch.Tensor:
    """`x` and both fp32 neighbours of each element, with both signs."""
    inf = torch.tensor(INF)
    around = torch.cat([x, torch.nextafter(x, inf), torch.nextafter(x, -inf)])
    return torch.cat([around, -around])


def random_floats(count: int) -> torch.Tensor:
    """fp32 of uniformly random bits, without NaN."""
    generator = torch.Generator().manual_seed(2026)
    x = torch.randint(-(2**31), 2**31, (count,), generator=generator).int().view(torch.float32)
    return x[~x.isnan()]


def around(values: tuple[float, ...]) -> tuple[torch.Tensor, list[int]]:
    """The midpoints between adjacent `values` with their lower and upper fp32 neighbours, and what each rounds to."""
    midpoints = [(low + high) / 2 for low, high in itertools.pairwise(values)]  # exact in Python's doubles
    x = torch.tensor(midpoints, dtype=torch.float64).float()
    inf = torch.tensor(INF)
    x = torch.stack([torch.nextafter(x, -inf), x, torch.nextafter(x, inf)], dim=-1).flatten()
    wanted = [[code, code + code % 2, code + 1] for code in range(len(midpoints))]
    return x, list(itertools.chain.from_iterable(wanted))


def test_e2m1_values_are_those_of_the_specification():
    wanted = torch.tensor([*E2M1, *(-value for value in E2M1)])
    assert formats.E2M1_VALUES.dtype == torch.float32
    assert torch.equal(bits(formats.E2M1_VALUES), bits(wanted))


def test_all_16_codes_decode_as_in_ml_dtypes():
    wanted = torch.from_numpy(CODES.numpy().view(ml_dtypes.float4_e2m1fn).astype(np.float32))
    assert torch.equal(bits(formats.decode_e2m1(CODES)), bits(wanted))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e4m3fn])
def test_all_256_scale_bytes_decode_as_in_ml_dtypes(dtype):
    wanted = torch.from_numpy(BYTES.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    decoded = formats.decode_e4m3(BYTES.view(dtype))
    assert decoded.isnan().nonzero().flatten().tolist() == [0x7F, 0xFF]
    finite = FINITE_BYTES.int()
    assert torch.equal(bits(decoded)[finite], bits(wanted)[finite])


@pytest.mark.parametrize(
    ("byte", "value"),
    [(0x01, 2**-9), (0x04, 0.0078125), (0x07, 0.013671875), (0x08, 0.015625), (0x7E, 448.0), (0x81, -(2**-9))],
)
def test_subnormal_scales_have_their_own_formula(byte, value):
    assert formats.decode_e4m3(torch.tensor([byte], dtype=torch.uint8)).item() == value


def test_scale_0x80_is_minus_zero():
    assert torch.signbit(formats.decode_e4m3(torch.tensor([0x80], dtype=torch.uint8))).item()


def test_encoding_undoes_decoding():
    assert torch.equal(formats.encode_e2m1(formats.decode_e2m1(CODES)), CODES)
    assert torch.equal(formats.encode_e4m3(formats.decode_e4m3(FINITE_BYTES)), FINITE_BYTES)


@pytest.mark.fault("ROCm/aiter#3992")
def test_e2m1_ties_go_to_the_even_code():
    """A rule called "even" that rounds every midpoint away from zero."""
    x = torch.tensor(E2M1_MIDPOINTS)
    assert formats.encode_e2m1(x).tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert formats.encode_e2m1(-x).tolist() == [8, 10, 10, 12, 12, 14, 14]


def test_e2m1_at_every_midpoint_and_one_ulp_beside_it():
    values = formats.E2M1_VALUES[:8]
    x = next_to((values[:-1] + values[1:]) / 2)
    assert torch.equal(formats.encode_e2m1(x), ml(x, ml_dtypes.float4_e2m1fn) & 15)


@pytest.mark.fault("triton-lang/triton#11753")
def test_e4m3_at_every_midpoint_and_one_ulp_beside_it():
    values = formats.decode_e4m3(BYTES[:0x7F])
    x = next_to((values[:-1] + values[1:]) / 2)
    assert torch.equal(formats.encode_e4m3(x), ml(x, ml_dtypes.float8_e4m3fn))


@pytest.mark.parametrize(
    ("encode", "values", "sign"),
    [(formats.encode_e2m1, E2M1, 8), (formats.encode_e4m3, E4M3, 0x80)],
    ids=["e2m1", "e4m3"],
)
def test_every_value_midpoint_and_neighbour_encodes_as_in_the_table(encode, values, sign):
    values_ = torch.tensor(values)
    assert encode(values_).tolist() == list(range(len(values)))
    assert encode(-values_).tolist() == [code + sign for code in range(len(values))]
    x, wanted = around(values)
    assert encode(x).tolist() == wanted
    assert encode(-x).tolist() == [code + sign for code in wanted]


@pytest.mark.fault("triton-lang/triton#11753")
@pytest.mark.parametrize(("x", "value"), [(1.0625001, 1.125), (400.1, 416.0), (2**-10 * 1.0001, 2**-9)])
def test_e4m3_rounds_once(x, value):
    """A step through fp16 would make ties of these, and round them down."""
    byte = formats.encode_e4m3(torch.tensor([x]))
    assert formats.decode_e4m3(byte).item() == value


def test_random_bits_encode_as_in_ml_dtypes_and_by_comparison_alone():
    x = random_floats(1_000_000)
    one = torch.ones(1)
    assert torch.equal(formats.encode_e2m1(x), exact_codes(x, one, one))
    assert torch.equal(formats.encode_e2m1(x), ml(x, ml_dtypes.float4_e2m1fn) & 15)
    x = x[x.abs() <= 464]  # beyond, ml_dtypes gives NaN where our format saturates
    assert torch.equal(formats.encode_e4m3(x), ml(x, ml_dtypes.float8_e4m3fn))


def test_saturation_nan_and_signs_of_zero():
    x = torch.tensor([6.0, 7.0, 3e38, INF, -INF, NAN, 0.0, -0.0, -0.1])
    assert formats.encode_e2m1(x).tolist() == [7, 7, 7, 7, 15, 7, 0, 8, 8]
    x = torch.tensor([448.0, 464.0, 465.0, 480.0, 3e38, INF, -INF, NAN, 0.0, -0.0, -1e-9])
    bytes_ = [0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7F, 0x00, 0x80, 0x80]
    assert formats.encode_e4m3(x).tolist() == bytes_
    minus_nan = torch.tensor([-0x400000], dtype=torch.int32).view(torch.float32)
    assert torch.signbit(minus_nan).item()
    assert formats.encode_e2m1(minus_nan).item() == 7
    assert formats.encode_e4m3(minus_nan).item() == 0x7F


def test_the_low_nibble_holds_the_even_k():
    codes = torch.tensor([[1, 2, 3, 4]], dtype=torch.uint8)
    assert formats.pack(codes).tolist() == [[0x21, 0x43]]
    assert formats.unpack(torch.tensor([[0x21, 0x43]], dtype=torch.uint8)).tolist() == [[1, 2, 3, 4]]


def test_packing_undoes_unpacking_for_every_byte():
    packed = BYTES.reshape(2, 4, 32)
    assert torch.equal(formats.pack(formats.unpack(packed)), packed)


@pytest.mark.fault("local-inference-lab/b12x#388")
def test_each_scale_byte_weighs_a_one_as_in_the_table():
    """Subnormal scales by the formula of normal ones, and a lost sign."""
    packed = torch.full((254, 8), 0x22, dtype=torch.uint8)
    weights = formats.dequantize(packed, FINITE_BYTES[:, None], torch.tensor(1.0))
    wanted = torch.tensor(E4M3, dtype=torch.float64)
    assert torch.equal(bits(weights), bits(torch.cat([wanted, -wanted])[:, None].expand(254, 16)))


@pytest.mark.fault("tile-ai/tilelang#2704")
@pytest.mark.parametrize("nibble", [0, 1], ids=["low", "high"])
def test_each_code_in_each_nibble_is_as_in_the_table(nibble):
    """An exponent rebased for zero and for the subnormal code. Code 8 is -0.0."""
    codes = torch.zeros(16, 16, dtype=torch.uint8)
    codes[:, nibble], codes[:, 1 - nibble] = CODES, 15 - CODES
    weights = formats.dequantize(formats.pack(codes), torch.full((16, 1), 0x38, dtype=torch.uint8), torch.tensor(1.0))
    wanted = torch.tensor([*E2M1, *(-value for value in E2M1)], dtype=torch.float64)
    assert torch.equal(bits(weights[:, nibble]), bits(wanted))
    assert torch.equal(bits(weights[:, 1 - nibble]), bits(wanted.flip(0)))


def test_dequantize_is_exact_and_keeps_places():
    """Every code times every finite scale times a global with all 24 bits."""
    global_scale = (2 - 2**-23) * 2.0**-40
    packed = formats.pack(CODES.repeat(254, 1))
    weights = formats.dequantize(packed, FINITE_BYTES[:, None], torch.tensor(global_scale))
    e2m1, e4m3 = formats.E2M1_VALUES.tolist(), formats.decode_e4m3(FINITE_BYTES).tolist()
    wanted = [[code * s * global_scale for code in e2m1] for s in e4m3]  # no more than 30 bits: exact
    assert weights.dtype == torch.float64
    assert torch.equal(bits(weights), bits(torch.tensor(wanted, dtype=torch.float64)))


def test_dequantize_takes_leading_dimensions_and_one_scale_per_16_values():
    generator = torch.Generator().manual_seed(1)
    packed = torch.randint(0, 256, (2, 3, 5, 24), dtype=torch.uint8, generator=generator)
    scale = torch.randint(0, 0x7F, (2, 3, 5, 3), dtype=torch.uint8, generator=generator)
    global_scale = torch.rand(2, 3, 5, generator=generator)
    weights = formats.dequantize(packed, scale.view(torch.float8_e4m3fn), global_scale)
    codes, scales = formats.unpack(packed), formats.decode_e4m3(scale)
    for e, f, n, k in itertools.product(range(2), range(3), range(5), range(48)):
        code = formats.E2M1_VALUES[int(codes[e, f, n, k])].item()
        assert weights[e, f, n, k].item() == code * scales[e, f, n, k // 16].item() * global_scale[e, f, n].item()


def test_a_global_broadcasts_to_the_rows():
    packed, scale = torch.full((2, 3, 8), 0x22, dtype=torch.uint8), torch.full((2, 3, 1), 0x38, dtype=torch.uint8)
    weights = formats.dequantize(packed, scale, torch.tensor([1.0, 2.0, 3.0]))
    assert weights[1, :, 0].tolist() == [1.0, 2.0, 3.0]


U8, F32 = torch.uint8, torch.float32


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: formats.decode_e2m1(torch.tensor([16], dtype=U8)), ValueError, "codes holds 16, .* 0 to 15"),
        (lambda: formats.decode_e2m1(torch.tensor([1])), TypeError, "codes is torch.int64, .* torch.uint8"),
        (lambda: formats.decode_e2m1([1]), TypeError, "codes is list"),
        (lambda: formats.decode_e4m3(torch.tensor([1.0])), TypeError, "scale is torch.float32, .*float8_e4m3fn"),
        (lambda: formats.encode_e2m1(torch.tensor([1.0]).double()), TypeError, "x is torch.float64"),
        (lambda: formats.encode_e4m3(torch.tensor([1.0]).bfloat16()), TypeError, "x is torch.bfloat16"),
        (lambda: formats.pack(torch.zeros(3, dtype=U8)), ValueError, r"codes has shape \[3\], .* even"),
        (lambda: formats.pack(torch.tensor([1, 99], dtype=U8)), ValueError, "codes holds 99"),
        (lambda: formats.unpack(torch.zeros(2)), TypeError, "packed is torch.float32"),
        (lambda: dequantize((2, 12), (2, 1), (2,)), ValueError, r"packed has shape \[2, 12\], .* multiple of 8"),
        (lambda: dequantize((2, 16), (2, 1), (2,)), ValueError, r"scale has shape \[2, 1\], .* \[2, 2\]"),
        (lambda: dequantize((2, 16), (2, 2), (3,)), ValueError, r"global_scale has shape \[3\], .* \[2\]"),
        (lambda: dequantize((2, 16), (2, 2), (2, 1)), ValueError, r"global_scale has shape \[2, 1\]"),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def dequantize(packed_shape, scale_shape, global_shape):
    packed, scale = torch.zeros(packed_shape, dtype=U8), torch.zeros(scale_shape, dtype=U8)
    return formats.dequantize(packed, scale, torch.ones(global_shape, dtype=F32))


def test_a_global_of_another_dtype_is_refused():
    packed, scale = torch.zeros(2, 8, dtype=U8), torch.zeros(2, 1, dtype=U8)
    with pytest.raises(TypeError, match=r"global_scale is torch\.float64"):
        formats.dequantize(packed, scale, torch.ones(2, dtype=torch.float64))
