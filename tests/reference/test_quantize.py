"""quantize: what the producers' own tools made of one tensor, and the shapes, dtypes and errors of the call."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nvfp4_suite.reference import formats
from nvfp4_suite.reference.layout import places
from nvfp4_suite.reference.quantize import RECIPES, exact_codes, global_scale_of, quantize

from .blocks import ordinary

VECTORS = Path(__file__).resolve().parent.parent / "data" / "vectors" / "quantize.safetensors"
BF16, F16 = torch.bfloat16, torch.float16
INF, NAN = torch.inf, torch.nan


@pytest.fixture(scope="module")
def vectors() -> dict[str, torch.Tensor]:
    return load_file(VECTORS)


# What the tools wrote


@pytest.mark.parametrize("amax", ["own", "small", "large"])
@pytest.mark.parametrize("tool", ["modelopt", "compressed_tensors", "torchao"])
def test_bytes_are_those_of_the_tool(vectors, tool, amax):
    packed, scale = quantize(vectors["x"], vectors[f"{tool}.{amax}.global_scale"], tool)
    assert torch.equal(scale, vectors[f"{tool}.{amax}.scale"])
    assert torch.equal(packed, vectors[f"{tool}.{amax}.packed"])


@pytest.mark.parametrize(("amax", "factor"), [("own", 1.0), ("small", 1 / 64), ("large", 8.0)])
@pytest.mark.parametrize("tool", ["modelopt", "compressed_tensors", "torchao"])
def test_global_scales_are_those_of_the_tool(vectors, tool, amax, factor):
    found = global_scale_of(vectors["x"].float().abs().amax() * factor, tool)
    assert found.item() == vectors[f"{tool}.{amax}.global_scale"].item()


# Global scales, worked out in rational arithmetic with every operation rounded to fp32. 361 tells the formulas apart:
# 2688 / 361 is 0x1.dc8afep+2, 2688 * (1 / 361) is one step below it, and 1 / (361 / 2688) one above.

GLOBAL_SCALES = [
    ("modelopt", {2.0: "0x1.861862p-11", 361.0: "0x1.130c30p-3", 0.0: "0x0p0", INF: "inf", NAN: "nan"}),
    ("compressed_tensors", {2.0: "0x1.5p+10", 361.0: "0x1.dc8afcp+2", 0.0: "0x1p0", 1e-38: "0x1p0", NAN: "0x1p0"}),
    ("torchao", {2.0: "0x1.861862p-11", 361.0: "0x1.130c30p-3", 0.0: "0x0p0", INF: "inf", NAN: "nan"}),
    ("vllm", {2.0: "0x1.5p+10", 361.0: "0x1.dc8b00p+2", 0.0: "0x0p0", INF: "0x0p0", NAN: "nan"}),
    ("transformer_engine", {2.0: "0x1p1", 361.0: "0x1.69p8", 0.0: "0x0p0", INF: "inf", NAN: "nan"}),
]


@pytest.mark.parametrize(("recipe", "wanted"), GLOBAL_SCALES, ids=[name for name, _ in GLOBAL_SCALES])
def test_global_scale_of(recipe, wanted):
    found = global_scale_of(torch.tensor(list(wanted)), recipe)
    numbers = torch.tensor([float.fromhex(value) for value in wanted.values()])
    assert torch.equal(found.nan_to_num(nan=-1.0), numbers.nan_to_num(nan=-1.0))


# Two dialects of one tensor (seen in modular/modular#6600: divisors read as multipliers, scales swizzled twice)


def test_one_tensor_in_both_dialects_dequantizes_alike():
    x = ordinary(128, 64)
    x *= 2 / x.abs().max()
    multiplier, divisor = (global_scale_of(x.abs().max(), recipe) for recipe in ("modelopt", "compressed_tensors"))
    packed, scale = quantize(x, multiplier, "modelopt")
    assert all(map(torch.equal, quantize(x, divisor, "compressed_tensors"), (packed, scale)))
    assert multiplier.item() == float.fromhex("0x1.861862p-11")
    assert divisor.item() == 1344
    weights = formats.dequantize(packed, scale, multiplier)
    others = formats.dequantize(packed, scale, 1 / divisor)
    assert ((weights - others).abs() <= weights.abs() * 2 * 2.0**-23).all()
    wrong = formats.dequantize(packed, scale, divisor)
    nonzero = weights != 0
    assert nonzero.sum() > 7000
    assert ((wrong / weights)[nonzero] / 1344.0**2 - 1).abs().max() < 2.0**-23


def test_a_double_swizzle_of_that_shape_moves_scales():
    """K = 64 and N = 128 are one 128x4 tile: the right bytes in the wrong places, so only positions can tell."""
    once = places(128, 4, "128x4").flatten()
    assert (once[once] != once).sum() > 400


# Shapes and dtypes


def test_scales_and_codes_have_a_row_each_of_their_own_global():
    """Every leading shape of a global scale that broadcasts to the rows gives what its rows give alone."""
    x = ordinary(2, 3, 32)
    for shape in [(), (1,), (3,), (2, 1), (2, 3)]:
        global_scale = (ordinary(*shape) + 2) / 100
        packed, scale = quantize(x, global_scale, "modelopt")
        assert packed.shape == (2, 3, 16)
        assert scale.shape == (2, 3, 2)
        for index in [(0, 0), (0, 2), (1, 1)]:
            own = global_scale if global_scale.numel() == 1 else global_scale.expand(2, 3)[index]
            alone = quantize(x[index], own, "modelopt")
            assert torch.equal(alone[0], packed[index])
            assert torch.equal(alone[1], scale[index])


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_16_bit_inputs_are_quantized_as_their_fp32_values(recipe, dtype):
    x = ordinary(8, 64).to(dtype)
    global_scale = global_scale_of(x.float().abs().max(), recipe)
    assert all(map(torch.equal, quantize(x, global_scale, recipe), quantize(x.float(), global_scale, recipe)))


@pytest.mark.fault("sgl-project/sglang#38773")
@pytest.mark.parametrize("recipe", RECIPES)
def test_x_is_left_alone_and_may_be_strided_or_empty(recipe):
    x = ordinary(64, 8).T
    copy, one = x.clone(), global_scale_of(torch.tensor(4.0), recipe)
    assert all(map(torch.equal, quantize(x, one, recipe), quantize(copy.contiguous(), one, recipe)))
    assert torch.equal(x, copy)
    assert [part.shape for part in quantize(x[:0], one, recipe)] == [(0, 32), (0, 4)]


@pytest.mark.fault("NVIDIA/Model-Optimizer#1397")
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_block_does_not_see_its_neighbours(recipe):
    """Seen in NVIDIA/Model-Optimizer#1397: one bad number spoils more than its block."""
    x = ordinary(4, 64)
    spoiled = x.clone()
    spoiled[1, 20], spoiled[2, 35] = NAN, INF
    global_scale = global_scale_of(x.abs().max(), recipe)
    kept = torch.ones(4, 4, dtype=torch.bool)
    kept[1, 1] = kept[2, 2] = False
    for part, spoiled_part in zip(
        quantize(x, global_scale, recipe), quantize(spoiled, global_scale, recipe), strict=True
    ):
        same = (part == spoiled_part).unflatten(-1, (4, -1)).all(-1)
        assert torch.equal(same, kept)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: quantize(torch.ones(16), torch.ones(()), "nvidia"),
            ValueError,
            "recipe is 'nvidia', .* one of modelopt",
        ),
        (
            lambda: quantize(torch.ones(16).double(), torch.ones(()), "vllm"),
            TypeError,
            "x is torch.float64, .*bfloat16",
        ),
        (lambda: quantize([1.0], torch.ones(()), "vllm"), TypeError, "x is list"),
        (lambda: quantize(torch.ones(2, 24), torch.ones(()), "vllm"), ValueError, r"x has shape \[2, 24\], .* of 16"),
        (lambda: quantize(torch.ones(()), torch.ones(()), "vllm"), ValueError, r"x has shape \[\]"),
        (lambda: quantize(torch.ones(16), torch.ones(()).half(), "vllm"), TypeError, "global_scale is torch.float16"),
        (lambda: quantize(torch.ones(16), 1.0, "vllm"), TypeError, "global_scale is float"),
        (
            lambda: quantize(torch.ones(2, 16), torch.ones(3), "vllm"),
            ValueError,
            r"global_scale has shape \[3\], .* rows \[2\]",
        ),
        (lambda: global_scale_of(torch.ones(()), "nvidia"), ValueError, "recipe is 'nvidia'"),
        (lambda: global_scale_of(torch.ones(()).half(), "vllm"), TypeError, "amax is torch.float16"),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


# The comparison without division


@pytest.mark.parametrize(
    ("x", "numerator", "denominator", "code"),
    [
        (0.75, 1.0, 3.0, 0),  # 0.25, a tie
        (float.fromhex("0x1.800002p-1"), 1.0, 3.0, 1),
        (float.fromhex("0x1.fffffep-1"), float.fromhex("0x1.400002p0"), 1.0, 3),  # above 1.25, which fp32 rounds it to
        (-12.0, 7.0, 24.0, 14),  # -3.5
        (-0.0, 5.0, 3.0, 8),
        (3e38, 3e38, 1e-38, 7),  # no overflow
        (1e-45, 1e-45, 3e38, 0),  # nor underflow
        (INF, 1.0, 1.0, 7),
    ],
)
def test_exact_codes(x, numerator, denominator, code):
    assert exact_codes(torch.tensor([x]), torch.tensor(numerator), torch.tensor(denominator)).tolist() == [code]
