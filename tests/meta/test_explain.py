"""The text of a failure: all its parts, in their order, aligned, short, with values decoded and raw."""

import pytest
import torch

from nvfp4_suite.contract.case import hashed, topk_ids
from nvfp4_suite.reference import bounds, explain, judge

from .outputs import BF16, FP16, INF, LAYER, NAN, enclosed, output, section, verdict


def spoiled() -> torch.Tensor:
    """LAYER's output with two rows swapped."""
    actual = enclosed(LAYER).expected.to(BF16)
    actual[[3, 7]] = actual[[7, 3]]
    return actual


def of_bitwise(**context) -> str:
    return verdict(judge.bitwise, spoiled(), enclosed(LAYER).expected.to(BF16), **context)


def of_bounded(**context) -> str:
    return verdict(judge.bounded, spoiled(), enclosed(LAYER), **context)


@pytest.mark.parametrize("text_of", [of_bitwise, of_bounded])
def test_the_text_has_every_part_in_its_order(text_of):
    text = text_of(**judge.context_of(LAYER), kernel="prefill")
    labels = [line.split("  ")[0] for line in text.splitlines()[1:] if not line.startswith(" ")]
    scaled = ["scaled"] if text_of is of_bounded else []
    shown = ["wrong", "actual", "expected", "difference", "first", "worst", *scaled, "pattern"]
    assert labels == ["case", "kernel", *shown, "repro", "environment"]
    assert section(text, "case") == [LAYER.id]
    assert section(text, "repro") == [f"nox -s tests -- --case {LAYER.id}"]
    assert section(text, "environment")[0].startswith(f"torch {torch.__version__}, Python 3.")


@pytest.mark.parametrize("text_of", [of_bitwise, of_bounded])
def test_the_text_is_short_and_aligned(text_of):
    text = text_of(**judge.context_of(LAYER), a_long_name="x")
    lines = text.splitlines()
    assert len(lines) <= 30 and max(map(len, lines)) <= 120, text
    start = len("a_long_name") + 2
    assert all(line[start - 2 : start] == "  " and line[start] != " " for line in lines[1:])


def test_the_context_of_a_case_names_its_routing_and_its_session():
    context = judge.context_of(LAYER, session="gpu-tests")
    assert context["repro"] == f"nox -s gpu-tests -- --case {LAYER.id}"
    ids, experts = context["routing"]
    assert torch.equal(ids, topk_ids(LAYER)) and experts == 8


def test_statistics():
    expected = torch.tensor([[1.0, 2.0, 0.0, 4.0, -5.0, 6.0]], dtype=BF16)
    actual = torch.tensor([[1.0, 2 + 2**-6, -0.0, NAN, INF, 6.0]], dtype=BF16)
    text = verdict(judge.bitwise, actual, expected)
    assert section(text, "wrong") == ["4 of 6 elements: 1 by one ulp, 1 in the sign of zero, at most 49184 ulps"]
    assert section(text, "actual") == ["1 NaN, 1 inf, 1 zeros, largest 6"]
    assert section(text, "expected") == ["0 NaN, 0 inf, 1 zeros, largest 6"]
    assert section(text, "difference") == ["RMS 0.00244 of the expected RMS; best factor 1.00076"]


def test_elements_are_shown_decoded_and_raw_and_the_worst_come_first():
    expected = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]], dtype=BF16)
    actual = expected.clone()
    explain.bits(actual)[0] += torch.tensor([1, 0, 2, 300, 3, 1], dtype=torch.int16)
    text = verdict(judge.bitwise, actual, expected)
    assert section(text, "first")[0] == "[0, 0]  1.00781  0x3F81  expected  1  0x3F80  1 ulp"
    assert [line[:6] for line in section(text, "first")] == ["[0, 0]", "[0, 2]", "[0, 3]"]
    assert [line[:6] for line in section(text, "worst")] == ["[0, 3]", "[0, 4]", "[0, 2]"]


def test_few_wrong_elements_are_shown_once_and_nan_before_all_numbers():
    actual = output()
    explain.bits(actual)[4, 4] += 300
    actual[20, 1] = NAN
    text = verdict(judge.bitwise, actual, output())
    assert section(text, "first") == []
    assert [line.split("]")[0] for line in section(text, "worst")] == ["[20, 1", "[4, 4"]


def test_bounded_shows_the_enclosure_and_how_far_outside():
    expected = torch.full((2, 4), 1.0, dtype=BF16)
    interval = bounds.Interval(expected.double(), expected.double() + 2**-7, expected.double(), BF16)
    actual = expected.clone()
    actual[1, 2] = 1 + 3 * 2**-7
    text = verdict(judge.bounded, actual, interval)
    assert text.startswith("the output leaves its enclosure in 1 of 8 elements")
    assert section(text, "worst") == ["[1, 2]  1.02344  0x3F83  expected  1  0x3F80  in [1, 1.00781]  2 ulps"]


def test_values_of_fp32_are_shown_with_all_their_bits():
    expected = torch.full((2, 4), 1 / 3)
    actual = expected.clone()
    explain.bits(actual)[0, 1] += 1
    assert section(verdict(judge.bitwise, actual, expected), "worst") == [
        "[0, 1]  0.3333333731  0x3EAAAAAC  expected  0.3333333433  0x3EAAAAAB  1 ulp"
    ]


@pytest.mark.parametrize("shape", [(), (6,), (2, 3, 4)])
def test_outputs_of_any_dimension_are_explained(shape):
    expected = torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)
    text = verdict(judge.bitwise, -expected, expected)
    assert section(text, "worst")[0].startswith(f"[{', '.join(str(size - 1) for size in shape or (1,))}]  -")


SPOIL = {
    "one": lambda x, at: x.masked_fill(at, 3.0),
    "zero": lambda x, at: x.masked_fill(at, 0.0),
    "NaN": lambda x, at: x.masked_fill(at, NAN),
    "inf": lambda x, at: x.masked_fill(at, INF),
    "huge": lambda x, at: x.masked_fill(at, -3e38),
    "sign": lambda x, at: torch.where(at, -x, x),
    "other": lambda x, at: torch.where(at, x.flip(0), x),
    "everything": lambda x, at: x + 1,
}


@pytest.mark.parametrize("spoil", SPOIL)
@pytest.mark.parametrize(
    ("rows", "columns", "top_k", "k"), [(1, 1, 1, 3), (1, 16, 2, 16), (3, 5, 8, 48), (9, 40, 1, 2)]
)
def test_whatever_is_wrong_is_explained_with_all_that_a_caller_may_give(spoil, rows, columns, top_k, k):
    """An explanation that raises something else would hide the failure."""
    for seed in range(4):
        numbers = hashed(f"{seed}/output", rows, columns)
        expected = (numbers.double() / 2**31 - 1).to(BF16)
        expected[numbers % 7 == 0] = 0
        expected[numbers % 11 == 0] = INF
        actual = SPOIL[spoil](expected, numbers % (seed + 2) == 0)
        actual[-1, -1] = 17
        ids = hashed(f"{seed}/ids", rows, top_k).int() % 5 - 1
        more = {"routing": (ids, 3), "operands": (torch.ones(rows, k), torch.ones(columns, k))}
        routes = expected.double()[:, None].expand(-1, top_k, -1) / top_k
        interval = bounds.Interval(expected.double(), expected.double(), expected.double(), BF16, routes, ids)
        for judge_, truth in ((judge.bitwise, expected), (judge.bounded, interval)):
            verdict(judge_, actual, truth, zeros_expected=True, **more)


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
