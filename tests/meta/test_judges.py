"""What bitwise and bounded let pass, what they refuse, and what they call mistrusted."""

import re

import pytest
import torch

from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.reference import bounds, explain, judge

from .outputs import BF16, F64, FP16, INF, NAN, enclosed, output, section, verdict, wide

SMALL = {dtype: Case(LayerShape(4, 2, 64, 96), 24, "random", "random", dtype) for dtype in ("bf16", "fp16")}
BOTH = [(judge.bitwise, lambda expected: expected), (judge.bounded, lambda expected: wide(expected, 0.1))]

# ---- what is right passes


@pytest.mark.parametrize("dtype", [BF16, FP16, torch.float32, F64])
def test_equal_bits_pass(dtype):
    judge.bitwise(output(dtype=dtype), output(dtype=dtype), case="x")


def test_strided_outputs_pass():
    judge.bitwise(output().t().contiguous().t(), output())


def test_any_nan_equals_any_nan():
    a = torch.tensor([0x7FC0, -0x40, 0x7F81, *[0x3F80] * 3], dtype=torch.int16).view(BF16)
    b = torch.tensor([0x7FC1, 0x7FC0, -0x40, *[0x3F80] * 3], dtype=torch.int16).view(BF16)
    judge.bitwise(a, b)


def test_zero_tokens_pass():
    empty = torch.zeros(0, 16, dtype=BF16)
    routes, ids = torch.zeros(0, 2, 16, dtype=F64), torch.zeros(0, 2, dtype=torch.int32)
    judge.bitwise(empty, empty.clone(), routing=(ids, 4))
    judge.bounded(empty, bounds.Interval(empty.double(), empty.double(), empty.double(), BF16))
    judge.bounded(empty, bounds.Interval(empty.double(), empty.double(), empty.double(), BF16, routes, ids))


@pytest.mark.parametrize("case", SMALL.values())
def test_the_expected_output_and_random_ones_inside_are_bounded(case):
    interval = enclosed(case)
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
    ids = torch.tensor([[0, 1]] * 24)
    routes = torch.stack([expected, torch.zeros_like(expected)], dim=1)
    interval = bounds.Interval(lower, upper, expected, BF16, routes, ids)
    actual = expected.to(BF16)
    for row_2, row_3 in [(INF, NAN), (65536.0, -INF), (59904.0, 3.0)]:
        actual[2], actual[3] = row_2, row_3
        judge.bounded(actual, interval)


# ---- what is wrong does not


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
@pytest.mark.parametrize("case", SMALL.values())
def test_bounded_sees_in_a_layer(fault, case):
    interval = enclosed(case)
    verdict(judge.bounded, fault(interval.expected.to(interval.dtype)), interval)


def test_bounded_sees_one_ulp_where_one_value_is_right():
    assert "1 of 2304 elements" in verdict(judge.bounded, one_ulp(output()), wide(output(), 0))


def test_bounded_sees_a_scale_error_that_lies_inside_everywhere():
    expected = output(256, 512)
    interval = wide(expected, 0.3)
    text = verdict(judge.bounded, scaled(expected), interval)
    assert text.startswith("the output lies inside its enclosure, but parts of it are scaled")
    assert re.match(r"the whole +by 1\.0(09|10)\d", section(text, "scaled")[0])
    judge.bounded((expected.double() * 1.001).to(BF16), interval)


def test_bounded_sees_a_zeroed_row_and_a_zeroed_column_that_lie_inside():
    expected = output(256, 512)
    interval = wide(expected, 0)
    for part in ((7, slice(None)), (slice(None), 41)):
        interval.lower[part] = interval.lower[part].clamp(max=0)
        interval.upper[part] = interval.upper[part].clamp(min=0)
    text = verdict(judge.bounded, zeroed_row(expected.clone()), interval)
    assert re.search(r"row 7 +by 0\.0000 +allowed 1 \+- 0\.\d+ +worst of 1 among 256 rows", text)
    text = verdict(judge.bounded, zeroed_column(expected.clone()), interval)
    assert re.search(r"column 41 +by 0\.0000 +allowed 1 \+- 0\.\d+ +worst of 1 among 512 columns", text)


def test_the_sign_of_zero_counts_bit_for_bit_only():
    expected = output()
    expected[2, 3] = 0.0
    actual = expected.clone()
    actual[2, 3] = -0.0
    text = verdict(judge.bitwise, actual, expected)
    assert "in 1 of 2304 elements" in text
    assert "1 in the sign of zero" in text
    assert "[2, 3]  -0  0x8000  expected  0  0x0000  0 ulps" in text
    judge.bounded(actual, wide(expected, 0))


def test_a_nan_in_place_of_a_number_and_the_other_way_round():
    text = verdict(judge.bitwise, nan(output()), output())
    assert "NaN against a number" in text and section(text, "actual")[0].startswith("1 NaN")
    assert "expected  nan" in verdict(judge.bitwise, output(), nan(output()))
    assert "NaN against a number" in verdict(judge.bounded, nan(output()), wide(output(), 0.1))
    assert "expected  nan" in verdict(judge.bounded, output(), wide(nan(output()), 0.1))


def test_a_wrong_kind_is_named_by_both():
    expected = output()
    for judge_, truth in BOTH:
        text = verdict(judge_, expected.half(), truth(expected))
        assert text.startswith("the output has dtype torch.float16, but should have torch.bfloat16")
        text = verdict(judge_, expected[:, 1:], truth(expected))
        assert text.startswith("the output has shape [24, 95], but should have [24, 96]")
        assert verdict(judge_, None, truth(expected)).startswith("the output is a NoneType, but should be a tensor")


def test_ids_that_name_no_expert_are_dropped_slots():
    ids = torch.arange(48).view(24, 2) % 5
    actual = output()
    actual[(ids == 4).any(1)] += 1
    texts = section(verdict(judge.bitwise, actual, output(), routing=(ids, 4)), "pattern")
    assert "all 9 wrong rows are tokens with a dropped slot, and all 9 such rows are wrong" in texts


# ---- what is mistrusted, and what the caller got wrong


def marked(judge_, *args) -> list | None:
    """The places that a judge's error says are wrong; None where it names none."""
    with pytest.raises(AssertionError) as error:
        judge_(*args)
    wrong = getattr(error.value, "wrong", None)
    return None if wrong is None else wrong.nonzero().tolist()


def test_an_error_carries_which_elements_are_wrong():
    expected = output(256, 512)
    assert marked(judge.bitwise, one_ulp(expected.clone()), expected) == [[3, 5]]
    assert marked(judge.bounded, nan(expected.clone()), wide(expected, 0.3)) == [[3, 5]]
    assert marked(judge.bounded, scaled(expected), wide(expected, 0.3)) is None, "none of them is wrong by itself"
    assert marked(judge.bitwise, expected.float(), expected) is None


def test_mostly_zeros_are_mistrusted_unless_they_are_the_point():
    expected = output(4, 4)
    expected[:2] = 0
    judge.bitwise(expected, expected)  # a half is not more than half
    expected[2, 0] = -0.0
    for judge_, truth in ((judge.bitwise, expected), (judge.bounded, wide(expected, 0))):
        text = verdict(judge_, expected, truth, case="empty")
        assert text.startswith("MISTRUSTED: 9 of 16 expected elements are exact zeros")
        assert section(text, "case") == ["empty"]
        judge_(expected, truth, zeros_expected=True)


def test_what_is_mostly_not_finite_is_mistrusted():
    """Poisoned memory is NaN too, and a kernel that writes nothing leaves it so."""
    expected = output(4, 4)
    expected[:2], expected[2, 0] = NAN, INF
    for judge_, truth in ((judge.bitwise, expected), (judge.bounded, wide(expected, 0))):
        assert verdict(judge_, expected, truth).startswith("MISTRUSTED: 9 of 16 expected elements are not finite")


def test_enclosures_that_mostly_hold_zero_are_mistrusted():
    """Whether they are so wide, or the case so: a kernel that does nothing would be right."""
    expected = output()
    interval = wide(expected, 10.0)
    text = verdict(judge.bounded, torch.zeros_like(expected), interval)
    assert re.match(r"MISTRUSTED: \d+ of 2304 enclosures hold 0; is that the case's point\?", text)
    judge.bounded(expected, interval, zeros_expected=True)


def test_a_mostly_open_enclosure_is_mistrusted():
    interval = wide(output(), 0)
    interval.lower[:12], interval.upper[:12] = -INF, INF
    judge.bounded(output(), interval)
    interval.lower[:13], interval.upper[:13] = -INF, INF
    assert verdict(judge.bounded, output(), interval).startswith("MISTRUSTED: 1248 of 2304 elements may overflow")


@pytest.mark.parametrize(("judge_", "truth"), BOTH)
def test_a_caller_learns_what_is_wrong_with_its_arguments_although_the_output_is_right(judge_, truth):
    expected = output()
    ids = torch.zeros(23, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"routing is that of \[23, 2\] routes, but the output has shape \[24, 96\]"):
        judge_(expected, truth(expected), routing=(ids, 4))
    x, weight = torch.zeros(24, 32), torch.zeros(95, 32)
    with pytest.raises(ValueError, match=r"operands have shapes \[24, 32\] and \[95, 32\], but should be"):
        judge_(expected, truth(expected), operands=(x, weight))
