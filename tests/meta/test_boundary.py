"""boundary allows exactly the block scales and codes that a recipe gives for values within the ends."""

import pytest
import torch

from nvfp4_suite.contract.case import hashed
from nvfp4_suite.reference import codes, judge, quantize
from nvfp4_suite.reference.formats import unpack

from .outputs import F64, INF, NAN, verdict
from .quantized import around, every_recipe, global_scale, quantized, values


def judged(x: torch.Tensor, g: torch.Tensor, recipe: str, scale: torch.Tensor, found: torch.Tensor) -> codes.Verdict:
    exact = codes.Values.of(x.double(), x.double(), g, quantize.RECIPES[recipe])
    return codes.Verdict.of(exact, scale, found)


# ---- what is right


@every_recipe
def test_the_exact_bytes_pass_and_no_other(recipe):
    x = values()
    packed, scale, g = quantized(x, recipe)
    judge.boundary(packed, scale, x.double(), x.double(), g, recipe=recipe)
    judge.boundary(packed, scale, x.double(), x.double(), g.expand(len(x)), recipe=recipe)
    right = unpack(packed).unflatten(1, (-1, 16))
    for step in (1, 2, 3, 8, 64, 128, 129, 254, 255):
        assert judged(x, g, recipe, scale + step, right).wrong_scales.all()
    for step in range(1, 16):
        assert judged(x, g, recipe, scale, (right + step) % 16).wrong_codes.all()


@every_recipe
def test_what_any_values_within_the_ends_give_passes(recipe):
    x = values(32, 64)
    g = global_scale(x, recipe)
    lower, upper = around(x, 0.01)
    for seed in range(10):
        share = hashed(f"{seed}/within", *x.shape).double() / 2**32
        inside = torch.lerp(lower, upper, share).float()
        judge.boundary(*quantize.quantize(inside, g, recipe), lower, upper, g, recipe=recipe)


def within(lower: float, upper: float) -> torch.Tensor:
    """fp32 numbers [n] of every size between the ends, the ends themselves and zero among them."""
    sizes = torch.logspace(-12, 2, 1000, dtype=F64)
    x = torch.cat([sizes, -sizes, torch.linspace(lower, upper, 1000, dtype=F64), torch.zeros(1, dtype=F64)])
    return torch.cat([x[(lower <= x) & (x <= upper)], torch.tensor([lower, upper], dtype=F64)]).float()


def one_block(lower: float, upper: float, recipe: str) -> codes.Values:
    """16 values of which the first alone is not 0, repeated in 256 rows; the global multiplier is 1."""
    ends = torch.zeros(2, 256, 16, dtype=F64)
    ends[:, :, 0] = torch.tensor([[lower], [upper]])
    unit = 2688.0 if recipe == "transformer_engine" else 1.0
    return codes.Values.of(*ends, torch.tensor(unit), quantize.RECIPES[recipe])


RANGES = [(0.3, 0.3), (0.9, 1.4), (-0.1, 0.1), (-3.0, 2.0), (0.0, 0.2), (-0.2, 0.0), (-9.0, 9.0), (5.0, 50.0)]


@every_recipe
@pytest.mark.parametrize(("lower", "upper"), [*RANGES, (1e-9, 2e-9), (0.0, 0.0)])
@pytest.mark.parametrize("byte", [0x00, 0x01, 0x38, 0x7E])
def test_a_code_is_right_exactly_if_a_value_within_the_ends_gives_it(recipe, lower, upper, byte):
    block, x = one_block(lower, upper, recipe), within(lower, upper)
    scale = torch.full((256, 1), byte, dtype=torch.uint8)
    every = torch.arange(256, dtype=torch.uint8)[:, None, None].expand(-1, 1, 16) % 16
    right = block.recipe.codes(x[:, None].expand(-1, 16), scale[:1, 0].expand(len(x)), block.global_scale[0])
    allowed = ~codes.Verdict.of(block, scale, every).wrong_codes[:, 0, 0]
    assert set(every[allowed, 0, 0].tolist()) == set(right[:, 0].tolist())


@every_recipe
@pytest.mark.parametrize(
    ("lower", "upper"),
    [*RANGES, (0.0, 100.0), (0.0, 0.0), (0.0, 2.0**-20), (-(2.0**-14), 0.02), (0.75, 0.9), (6.0, 7.0)],
)
def test_a_block_scale_is_right_exactly_if_values_within_the_ends_give_it(recipe, lower, upper):
    block, x = one_block(lower, upper, recipe), within(lower, upper)
    every = torch.arange(256, dtype=torch.uint8)[:, None]
    right = block.recipe.block_scale(x.abs(), block.global_scale[0])
    allowed = ~codes.Verdict.of(block, every, torch.zeros(256, 1, 16, dtype=torch.uint8)).wrong_scales
    assert set(every[allowed].tolist()) == set(right.tolist())


def test_a_value_that_may_be_anything_leaves_the_others_of_its_block_bound():
    x = values()
    packed, scale, g = quantized(x)
    lower, upper = x.double(), x.double()
    lower[0, 3], upper[0, 3] = -INF, INF
    for code in range(16):
        other = packed.clone()
        other[0, 1] = (other[0, 1] & 0x0F) | code << 4
        judge.boundary(other, scale, lower, upper, g)
    nothing_known = torch.zeros(256, 16, dtype=F64)
    nothing_known[:, 0] = INF
    block = codes.Values.of(-nothing_known, nothing_known, g, quantize.RECIPES["vllm"])
    every = torch.arange(256, dtype=torch.uint8)[:, None]
    found = codes.Verdict.of(block, every, torch.zeros(256, 1, 16, dtype=torch.uint8))
    assert every[~found.wrong_scales].tolist() == list(range(128))  # 0x7F too: it may be NaN
    for byte in (0x00, 0x38):
        every_code = every[:, None].expand(-1, 1, 16) % 16
        scales = torch.full((256, 1), byte, dtype=torch.uint8)
        assert not codes.Verdict.of(block, scales, every_code).wrong_codes[..., 0].any()
    packed[0, 2] ^= 1
    assert "1 of 512 codes" in verdict(judge.boundary, packed, scale, lower, upper, g)


@every_recipe
def test_a_nan_is_required(recipe):
    x = values()
    g = global_scale(x, recipe)
    x[5, 20] = NAN
    packed, scale = quantize.quantize(x, g, recipe)
    judge.boundary(packed, scale, x.double(), x.double(), g, recipe=recipe)
    scale[5, 1] = 0x40
    text = verdict(judge.boundary, packed, scale, x.double(), x.double(), g, recipe=recipe)
    assert " 1 of 32 block scales and " in text and "amax = nan" in text


def test_zero_rows_pass():
    empty = torch.zeros(0, 32, dtype=F64)
    bytes_ = torch.zeros(0, 16, dtype=torch.uint8), torch.zeros(0, 2, dtype=torch.uint8)
    judge.boundary(*bytes_, empty, empty, torch.tensor(1.0), routing=(torch.zeros(0, 2, dtype=torch.int32), 4))


def test_an_error_carries_which_codes_are_wrong_and_those_of_wrong_scales():
    x = values(4, 32)
    packed, scale, g = quantized(x, "vllm")
    packed[1, 9] ^= 0x70  # the code of column 19
    scale[2, 0] += 1
    with pytest.raises(AssertionError) as error:
        judge.boundary(packed, scale, x.double(), x.double(), g)
    wrong = error.value.wrong
    assert wrong.shape == x.shape and wrong[2, :16].all()
    assert wrong.nonzero().tolist() == [[1, 19], *([2, column] for column in range(16))]
