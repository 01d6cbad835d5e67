"""What boundary says of wrong block scales and codes, what it calls mistrusted, and of which kind it is."""

import re

import pytest
import torch

from nvfp4_suite.contract.case import hashed
from nvfp4_suite.reference import judge, quantize

from .outputs import F64, NAN, section, verdict
from .quantized import around, global_scale, quantized, values

# ---- the explanation


def test_a_block_scale_is_explained_before_the_codes_that_it_changes():
    x = values()
    packed, scale, g = quantized(x)
    scale[5, 1] += 2
    text = verdict(judge.boundary, packed, scale, x.double(), x.double(), g, case="some-id")
    assert text.startswith("no values within the enclosure give 1 of 32 block scales and ")
    labels = [line.split("  ")[0] for line in text.splitlines()[1:] if not line.startswith(" ")]
    assert labels == ["case", "wrong", "scales", "codes", "pattern", "environment"]
    assert section(text, "wrong")[0] == "1 of 32 block scales, by at most 2 steps"


@pytest.mark.parametrize(("steps", "needs"), [(-1, "needs amax < "), (2, "needs amax >= ")])
def test_a_block_scale_is_shown_with_its_distance_from_the_rounding_boundary(steps, needs):
    x = values()
    packed, scale, g = quantized(x)
    right = scale[5, 1].item()
    scale[5, 1] += steps
    (line,) = section(verdict(judge.boundary, packed, scale, x.double(), x.double(), g), "scales")
    assert line.startswith(f"[5, 16:32]  0x{right + steps:02X} (") and f"right 0x{right:02X} (" in line
    limit = torch.tensor(float(re.search(needs + r"(\S+),", line)[1]))
    below, above = (quantize.RECIPES["vllm"].block_scale(limit * (1 + share), g).item() for share in (-1e-5, 1e-5))
    assert (below, above) == ((right - 1, right) if steps < 0 else (right + 1, right + 2))


def one_code(lower: float, upper: float, code: int) -> str:
    """The line on a code of a block whose amax is 6 and whose scale is 1, with global scale 1."""
    ends = torch.ones(2, 2, 16, dtype=F64)
    ends[:, :, 0] = 6.0
    ends[:, 1, 4] = torch.tensor([lower, upper])
    packed, scale = quantize.quantize(ends[0].float(), torch.tensor(1.0), "vllm")
    packed[1, 2] = (packed[1, 2] & 0xF0) | code
    return section(verdict(judge.boundary, packed, scale, *ends, torch.tensor(1.0)), "codes")[0]


@pytest.mark.parametrize(
    ("lower", "upper", "code", "cells"),
    [
        (1.2, 1.2, 3, ["0x3 (1.5)", "right 0x2 (1)", "x = 1.2", "needs x >= 1.25, 4 % off"]),
        (1.3, 1.4, 2, ["0x2 (1)", "right 0x3 (1.5)", "x in [1.3, 1.4]", "needs x < 1.25, 3.85 % off"]),
        (1.2, 1.3, 4, ["0x4 (2)", "right 0x2 (1) to 0x3 (1.5)", "x in [1.2, 1.3]", "needs x >= 1.75, 25.7 % off"]),
        (0.1, 0.1, 8, ["0x8 (-0)", "right 0x0 (0)", "x = 0.1", "needs x < 0, 100 % off"]),
        (-0.3, -0.3, 8, ["0x8 (-0)", "right 0x9 (-0.5)", "x = -0.3", "needs x >= -0.25, 16.7 % off"]),
    ],
)
def test_a_code_is_shown_with_its_distance_from_the_rounding_boundary(lower, upper, code, cells):
    assert one_code(lower, upper, code).split("  ") == ["[1, 4]", *cells[:2], "scale 0x38 (1)", *cells[2:]]


def test_a_scale_that_no_amax_gives_is_said_to_be_so():
    x = values()
    packed, scale, g = quantized(x)
    for byte in (0x7F, 0xB8):
        scale[5, 1] = byte
        text = verdict(judge.boundary, packed, scale, x.double(), x.double(), g)
        assert text.startswith("no values within the enclosure give 1 of 32 block scales and 0 of 512 codes")
        assert section(text, "scales")[0].endswith("no amax gives it")


def test_a_code_that_no_value_gives_under_a_scale_of_zero():
    x = values()
    packed, scale, g = quantized(x)
    packed[1, 2] ^= 3
    text = verdict(judge.boundary, packed, scale, x.double(), x.double(), g)
    assert section(text, "codes")[0].endswith("scale 0x00 (0)  x = 0  no x gives it")


def swapped_rows(packed, scale):
    for part in (packed, scale):
        part[[3, 6]] = part[[6, 3]]


def swapped_nibbles(packed, scale):
    packed[:] = packed >> 4 | packed << 4


def doubled_scales(packed, scale):
    scale += 8


def last_block(packed, scale):
    packed[:, -8:] = 0


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (swapped_rows, r"all \d+ wrong block scales are in rows 3 and 6"),
        (swapped_nibbles, "columns 0 and 1, 2 and 3, and so on are swapped, in all 32 wrong columns"),
        (doubled_scales, r"actual = 2\^1 x expected in all 64 wrong block scales"),
        (last_block, "wrong codes are in the last 16 columns, 112 to 127, from a multiple of 16"),
    ],
)
def test_patterns_of_block_scales_and_codes(fault, words):
    x = values(8, 128, "patterns") * torch.linspace(1, 4, 8)[:, None] + 0.01
    g = global_scale(x, "vllm") / 8
    packed, scale = quantize.quantize(x, g, "vllm")
    fault(packed, scale)
    assert re.search(words, verdict(judge.boundary, packed, scale, x.double(), x.double(), g))


def test_rows_that_are_routes_are_named_by_their_expert():
    ids = hashed("routes", 16, 8).argsort(1)[:, :2].int()
    x = values(32, 64)
    packed, scale, g = quantized(x)
    packed[(ids == 3).flatten()] ^= 1
    text = verdict(judge.boundary, packed, scale, x.double(), x.double(), g, routing=(ids, 8))
    count = int((ids == 3).sum())
    assert f"all {count} wrong rows are tokens of expert 3, and all {count} such rows are wrong" in text


# ---- what is mistrusted, and what is of the wrong kind


@pytest.mark.parametrize("width", [0, 2.0**-30])
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_mostly_zeros_are_mistrusted_unless_they_are_the_point(zero, width):
    """Also where a range holds both signs, or where the sign is negative."""
    x = values()
    x[:, :40] = zero
    packed, scale, g = quantized(x)
    ends = (x.double() - width, x.double() + width)
    text = verdict(judge.boundary, packed, scale, *ends, g)
    assert re.match(r"MISTRUSTED: 3\d\d of 512 expected codes are exact zeros", text)
    if width == 0:
        judge.boundary(packed, scale, *ends, g, zeros_expected=True)


def test_mostly_uncertain_codes_are_mistrusted():
    x = values() + 0.01
    packed, scale, g = quantized(x)
    judge.boundary(packed, scale, *around(x, 0.02), g)
    assert "codes have more than one right answer" in verdict(judge.boundary, packed, scale, *around(x, 0.3), g)


def test_outputs_of_a_wrong_kind_are_named():
    x = values()
    packed, scale, g = quantized(x)
    ends = x.double(), x.double()
    text = verdict(judge.boundary, packed[:, 1:], scale, *ends, g)
    assert text.startswith("packed has shape [8, 31], but should have [8, 32]")
    assert verdict(judge.boundary, packed.int(), scale, *ends, g).startswith("packed has dtype torch.int32")
    assert verdict(judge.boundary, packed, scale.float(), *ends, g).startswith("scale has dtype torch.float32")
    assert verdict(judge.boundary, packed, None, *ends, g).startswith("scale is a NoneType")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"recipe": "other"}, "recipe is 'other', but should be one of modelopt"),
        (
            {"lower": torch.zeros(8, 60, dtype=F64)},
            r"lower and upper have shapes \[8, 60\] and \[8, 64\], but should be",
        ),
        ({"lower": torch.full((8, 64), 9.0, dtype=F64)}, "lower is above upper"),
        ({"lower": torch.full((8, 64), NAN, dtype=F64)}, "one of them alone is NaN"),
        (
            {"global_scale": torch.ones(7)},
            r"global_scale has shape \[7\], but should be one number, or one for each row",
        ),
        ({"routing": (torch.zeros(3, 2), 4)}, r"routing is that of \[3, 2\] routes"),
    ],
)
def test_a_caller_learns_what_is_wrong_with_its_arguments(change, problem):
    x = values()
    packed, scale, g = quantized(x)
    arguments = {"lower": x.double(), "upper": x.double(), "global_scale": g} | change
    with pytest.raises(ValueError, match=problem):
        judge.boundary(packed, scale, **arguments)
    with pytest.raises(TypeError, match=r"lower is torch\.float32, but should be torch\.float64"):
        judge.boundary(packed, scale, x, x, g)
