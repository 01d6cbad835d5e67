"""The judges see every planted fault and name it; what is right passes."""

import functools
import re
from collections.abc import Callable

import pytest
import torch

from nvfp4_suite.contract.case import Case, random_inputs
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.reference import bounds, explain, judge

BF16, FP16, F64 = torch.bfloat16, torch.float16, torch.float64
NAN, INF = torch.nan, torch.inf


def output(rows=24, columns=96, dtype=BF16) -> torch.Tensor:
    """A plausible output without zeros."""
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(5))
    return (x + 0.01 * x.sign()).to(dtype)


def verdict(judge_: Callable, *args, **context) -> str:
    with pytest.raises(AssertionError) as error:
        judge_(*args, **context)
    return str(error.value)


def wide(expected: torch.Tensor, relative: float) -> bounds.Interval:
    """An enclosure of `relative` of the output's RMS on both sides."""
    e = expected.double()
    d = relative * e.square().mean().sqrt()
    return bounds.Interval((e - d).to(expected.dtype).double(), (e + d).to(expected.dtype).double(), e, expected.dtype)


@functools.cache
def real(dtype: str, hidden: int) -> bounds.Interval:
    case = Case(LayerShape(4, 2, hidden, 96), 24, "random", "random", dtype)
    inputs = random_inputs(case)
    return bounds.enclose(inputs.hidden_states, inputs.banks, inputs.topk_weights, inputs.topk_ids, **case.options)


# ---- what is right passes


@pytest.mark.parametrize("dtype", [BF16, FP16, torch.float32, F64])
def test_equal_bits_pass(dtype):
    judge.bitwise(output(dtype=dtype), output(dtype=dtype), case="x")


def test_strided_outputs_pass():
    judge.bitwise(output().t().contiguous().t(), output())


def test_any_nan_equals_any_nan():
    a = torch.tensor([0x7FC0, -0x40, 0x7F81, 0x3F80], dtype=torch.int16).view(BF16)
    b = torch.tensor([0x7FC1, 0x7FC0, -0x40, 0x3F80], dtype=torch.int16).view(BF16)
    judge.bitwise(a, b)


def test_zero_tokens_pass():
    empty = torch.zeros(0, 16, dtype=BF16)
    judge.bitwise(empty, empty.clone())
    judge.bounded(empty, bounds.Interval(empty.double(), empty.double(), empty.double(), BF16))


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("hidden", [64, 384])
def test_the_expected_output_and_random_ones_inside_are_bounded(dtype, hidden):
    interval = real(dtype, hidden)
    judge.bounded(interval.expected.to(interval.dtype), interval)
    generator = torch.Generator().manual_seed(3)
    for _ in range(5):
        share = torch.rand(interval.expected.shape, generator=generator, dtype=F64)
        inside = torch.lerp(interval.lower, interval.upper, share).to(interval.dtype)
        judge.bounded(inside, interval)


def test_nan_and_inf_that_the_enclosure_asks_for_pass():
    expected = output().double()
    lower, upper = expected.clone(), expected.clone()
    lower[0] = upper[0] = expected[0] = NAN
    lower[1] = upper[1] = expected[1] = INF
    lower[2], upper[2], expected[2] = 59904, INF, INF
    lower[3], upper[3] = -INF, INF
    interval = bounds.Interval(lower, upper, expected, BF16)
    actual = expected.to(BF16)
    for row_2, row_3 in [(INF, NAN), (65536.0, -INF), (59904.0, 3.0)]:
        actual[2], actual[3] = row_2, row_3
        judge.bounded(actual, interval)


# ---- planted faults


def swapped_columns(x):
    return x.view(len(x), -1, 2).flip(-1).reshape(x.shape)


def scaled(x):
    return (x.double() * 1.01).to(x.dtype)


def zeroed_row(x):
    x[7] = 0
    return x


def zeroed_column(x):
    x[:, 41] = 0
    return x


def one_ulp(x):
    explain.bits(x)[3, 5] += 1
    return x


def nan(x):
    x[3, 5] = NAN
    return x


def inf(x):
    x[3, 5] = INF
    return x


FAULTS = [swapped_columns, scaled, zeroed_row, zeroed_column, one_ulp, nan, inf]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", [BF16, FP16, torch.float32])
def test_bitwise_sees(fault, dtype):
    assert "differs from the expected bits" in verdict(judge.bitwise, fault(output(dtype=dtype)), output(dtype=dtype))


@pytest.mark.parametrize("fault", [f for f in FAULTS if f is not one_ulp])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("hidden", [64, 384])
def test_bounded_sees_in_a_layer(fault, dtype, hidden):
    interval = real(dtype, hidden)
    verdict(judge.bounded, fault(interval.expected.to(interval.dtype)), interval)


def test_bounded_sees_one_ulp_where_one_value_is_right():
    assert "1 of 2304 elements" in verdict(judge.bounded, one_ulp(output()), wide(output(), 0))


def test_bounded_sees_a_scale_error_that_lies_inside_everywhere():
    expected = output(256, 512)
    interval = wide(expected, 0.3)
    text = verdict(judge.bounded, scaled(expected), interval)
    assert re.match("the output lies inside its enclosure, but parts of it are scaled: the whole by 1.0(09|10)", text)
    judge.bounded((expected.double() * 1.001).to(BF16), interval)


def test_bounded_sees_a_zeroed_row_and_a_zeroed_column_that_lie_inside():
    expected = output(256, 512)
    interval = wide(expected, 0)
    interval = bounds.Interval(interval.lower.clamp(max=0), interval.upper.clamp(min=0), interval.expected, BF16)
    text = verdict(judge.bounded, zeroed_row(expected.clone()), interval)
    assert re.search(r"scaled: row 7 by 0\.00000, where 1 \+- 0\.\d+ is allowed", text)
    text = verdict(judge.bounded, zeroed_column(expected.clone()), interval)
    assert "scaled: column 41 by 0.00000" in text


def test_the_sign_of_zero_counts_bit_for_bit_only():
    expected = output()
    expected[2, 3] = 0.0
    actual = expected.clone()
    actual[2, 3] = -0.0
    text = verdict(judge.bitwise, actual, expected)
    assert "in 1 of 2304 elements" in text
    assert "1 in the sign of zero" in text
    assert "[2, 3]: -0 (0x8000), expected 0 (0x0000), 0 ulps" in text
    judge.bounded(actual, wide(expected, 0))


def test_a_nan_in_place_of_a_number_and_the_other_way_round():
    text = verdict(judge.bitwise, nan(output()), output())
    assert "NaN against a number" in text and "actual:   1 NaN" in text
    assert "expected nan" in verdict(judge.bitwise, output(), nan(output()))
    assert "NaN against a number" in verdict(judge.bounded, nan(output()), wide(output(), 0.1))
    interval = wide(nan(output()), 0.1)
    verdict(judge.bounded, output(), interval)


def test_a_wrong_kind_is_named_by_both():
    expected, interval = output(), wide(output(), 0.1)
    for judge_, truth in ((judge.bitwise, expected), (judge.bounded, interval)):
        text = verdict(judge_, expected.half(), truth)
        assert text.startswith("the output has dtype torch.float16, but should have torch.bfloat16")
        text = verdict(judge_, expected[:, 1:], truth)
        assert text.startswith("the output has shape [24, 95], but should have [24, 96]")
        assert verdict(judge_, None, truth).startswith("the output is a NoneType, but should be a tensor")


def test_mostly_zeros_are_mistrusted_unless_they_are_the_point():
    expected = output(4, 4)
    expected[:2] = 0
    judge.bitwise(expected, expected)  # a half is not more than half
    expected[2, 0] = -0.0
    for judge_, truth in ((judge.bitwise, expected), (judge.bounded, wide(expected, 0))):
        text = verdict(judge_, expected, truth, case="empty")
        assert text.startswith("MISTRUSTED: 9 of 16 expected elements are exact zeros")
        assert "case=empty" in text
        judge_(expected, truth, zeros_expected=True)


def test_a_mostly_open_enclosure_is_mistrusted():
    interval = wide(output(), 0)
    interval.lower[:13], interval.upper[:13] = -INF, INF
    assert verdict(judge.bounded, output(), interval).startswith("MISTRUSTED: 1248 of 2304 elements may overflow")


# ---- the text


def test_the_text_has_every_piece_in_its_order():
    text = verdict(
        judge.bitwise, zeroed_row(output()), output(), case="some-id", kernel="prefill", repro="pytest --case some-id"
    )
    pieces = [
        "the output differs from the expected bits in 96 of 2304 elements",
        "  case=some-id",
        "  kernel=prefill",
        "statistics:",
        "  wrong: 96 of 2304, 0 by one ulp, 0 in the sign of zero, at most ",
        "  actual:   0 NaN, 0 inf, 96 zeros, max ",
        "  expected: 0 NaN, 0 inf, 0 zeros, max ",
        "  RMS of the difference / RMS of expected: 0.",
        "first:",
        "  [7, 0]: 0 (0x0000), expected ",
        "worst:",
        "pattern: 96 of 96 in row 7",
        "repro: pytest --case some-id",
        "environment: torch ",
    ]
    positions = [text.find(piece) for piece in pieces]
    assert -1 not in positions and positions == sorted(positions), text
    assert max(map(len, text.splitlines())) <= 120


def test_elements_are_shown_decoded_and_raw_and_the_worst_come_first():
    expected = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]], dtype=BF16)
    actual = expected.clone()
    explain.bits(actual)[0] += torch.tensor([1, 0, 2, 300, 3, 1], dtype=torch.int16)
    lines = verdict(judge.bitwise, actual, expected).splitlines()
    first, worst = lines.index("first:"), lines.index("worst:")
    assert lines[first + 1] == "  [0, 0]: 1.00781 (0x3F81), expected 1 (0x3F80), 1 ulps"
    assert [line.split(":")[0] for line in lines[worst + 1 : worst + 5]] == [
        "  [0, 3]",
        "  [0, 4]",
        "  [0, 2]",
        "  [0, 0]",
    ]
    assert worst - first == 5


def test_bounded_shows_the_enclosure_and_how_far_outside():
    expected = torch.full((2, 4), 1.0, dtype=BF16)
    interval = bounds.Interval(expected.double(), expected.double() + 2**-7, expected.double(), BF16)
    actual = expected.clone()
    actual[1, 2] = 1 + 3 * 2**-7
    text = verdict(judge.bounded, actual, interval)
    assert text.startswith("the output leaves its enclosure in 1 of 8 elements")
    assert "  [1, 2]: 1.02344 (0x3F83), expected 1 (0x3F80) in [1, 1.00781], 2 ulps" in text


def test_values_of_fp32_are_shown_with_all_their_bits():
    expected = torch.full((2, 4), 1 / 3)
    actual = expected.clone()
    explain.bits(actual)[0, 1] += 1
    assert "[0, 1]: 0.3333333731 (0x3EAAAAAC), expected 0.3333333433 (0x3EAAAAAB), 1 ulps" in verdict(
        judge.bitwise, actual, expected
    )


@pytest.mark.parametrize(
    ("a", "b", "steps"),
    [
        (1.0, 1.0, 0),
        (0.0, -0.0, 0),
        (1.0, 1 + 2**-7, 1),
        (-1.0, -1 - 2**-7, 1),
        (2**-133, -(2**-133), 2),
        (NAN, 1.0, -1),
    ],
)
def test_ulps(a, b, steps):
    pair = [torch.tensor([x], dtype=BF16) for x in (a, b)]
    assert explain.ulps(*pair).item() == explain.ulps(*pair[::-1]).item() == steps


def test_fp16_infinity_is_one_step_behind_its_largest_number():
    assert explain.ulps(torch.tensor([65504.0], dtype=FP16), torch.tensor([INF], dtype=FP16)).item() == 1


def mask(rows=32, columns=128) -> torch.Tensor:
    return torch.zeros(rows, columns, dtype=torch.bool)


def marked(*place) -> torch.Tensor:
    wrong = mask()
    wrong[place] = True
    return wrong


ALL = slice(None)


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ((3, ALL), ["128 of 128 in row 3"]),
        ((ALL, 17), ["32 of 32 in column 17"]),
        ((ALL, 64), ["32 of 32 in column 64, from a multiple of 64"]),
        ((ALL, slice(32, 48)), ["512 of 512 in columns 32 to 47, from a multiple of 32"]),
        ((ALL, slice(33, 48)), ["480 of 480 in columns 33 to 47"]),
        ((ALL, slice(112, 128)), ["512 of 512 in the last 16 columns, 112 to 127, from a multiple of 16"]),
        (
            (ALL, slice(64, 128)),
            ["2048 of 2048 in the last 64 columns, 64 to 127 (the second half), from a multiple of 64"],
        ),
        ((ALL, slice(0, 64)), ["2048 of 2048 in columns 0 to 63 (the first half)"]),
        ((ALL, slice(1, None, 2)), ["2048 of 2048 in odd columns"]),
        ((ALL, slice(0, None, 2)), ["2048 of 2048 in even columns"]),
        ((slice(0, None, 2), ALL), ["2048 of 2048 in even rows"]),
        (
            (slice(16, 32), 5),
            ["16 of 16 in the last 16 rows, 16 to 31 (the second half), from a multiple of 16", "16 of 16 in column 5"],
        ),
        ((ALL, ALL), []),
        ((3, slice(0, 3)), []),  # three elements are no pattern
    ],
)
def test_patterns(place, found):
    assert explain.patterns(marked(*place)) == found


def test_a_pattern_survives_a_few_strays():
    wrong = marked(3, ALL)
    wrong[20, 77] = wrong[9, 4] = True
    assert explain.patterns(wrong) == ["128 of 130 in row 3"]


def test_random_places_have_no_pattern():
    wrong = torch.rand(32, 128, generator=torch.Generator().manual_seed(1)) < 0.05
    assert explain.patterns(wrong) == []


def test_a_one_dimensional_output_has_columns():
    wrong = torch.zeros(64, dtype=torch.bool)
    wrong[48:] = True
    assert explain.patterns(wrong) == ["16 of 16 in the last 16 columns, 48 to 63, from a multiple of 16"]
