"""Faults that a kernel may have, planted in a layer on inputs like real ones: no judge may miss one."""

import dataclasses
import re

import pytest
import torch

from nvfp4_suite.contract.case import Case
from nvfp4_suite.reference import judge, moe
from nvfp4_suite.reference.bounds import Interval

from .outputs import BF16, INF, LAYER, NAN, TOP_8, enclosed, inputs_of, section, verdict

CASES = [LAYER, dataclasses.replace(LAYER, dtype="fp16"), TOP_8]
EXPERT = 3


def contribution(case: Case) -> torch.Tensor:
    """What EXPERT adds to the output, [T, H]."""
    interval = enclosed(case)
    return (interval.routes * (interval.topk_ids == EXPERT)[..., None]).sum(1)


def with_globals(case: Case, **changed: torch.Tensor) -> torch.Tensor:
    """The layer's output with other banks."""
    inputs = inputs_of(case)
    banks = dataclasses.replace(inputs.banks, **changed)
    layer = (inputs.hidden_states, banks, inputs.topk_weights, inputs.topk_ids)
    return moe.expert_layer(*layer, **case.options, rounding="w4a16")


def of_another_expert(name: str):
    def fault(case: Case) -> torch.Tensor:
        global_scale = getattr(inputs_of(case).banks, name).clone()
        global_scale[EXPERT] = global_scale[EXPERT + 1]
        return with_globals(case, **{name: global_scale})

    return fault


def without_slot(case: Case) -> torch.Tensor:
    return moe.combine(enclosed(case).routes[:, :-1], moe.rounding_form("w4a16", BF16))


def swapped_rows(case: Case) -> torch.Tensor:
    rows = torch.arange(case.tokens)
    rows[[3, 7]] = rows[[7, 3]]
    return enclosed(case).expected[rows]


def put(value: float, *place):
    def fault(case: Case) -> torch.Tensor:
        actual = enclosed(case).expected.clone()
        actual[place] = value
        return actual

    return fault


def doubled_column(case: Case) -> torch.Tensor:
    actual = enclosed(case).expected.clone()
    actual[:, 200] *= 2
    return actual


FAULTS = {  # the fault, and what the texts say of it
    "every element x 1.01": (lambda case: enclosed(case).expected * 1.01, r"actual = 1\.0\d+ x expected in all"),
    "every element x 0.04": (lambda case: enclosed(case).expected * 0.04, r"actual = 0\.04\d* x expected in all"),
    "one row zeroed": (put(0, 7), "row 7 is zero throughout"),
    "two rows swapped": (swapped_rows, "row 3 holds what row 7 should hold, and the other way round"),
    "one expert x 1.02": (
        lambda case: enclosed(case).expected + 0.02 * contribution(case),
        f"all .* wrong rows are tokens of expert {EXPERT}, and ",
    ),
    "one expert missing": (
        lambda case: enclosed(case).expected - contribution(case),
        f"wrong rows are tokens of expert {EXPERT}, and all",
    ),
    "zeros": (lambda case: enclosed(case).expected * 0, "the whole output is zero"),
    "one NaN": (put(NAN, 5, 17), "NaN against a number"),
    "one inf": (put(INF, 5, 17), r"\[5, 17\]  inf"),
    "one column doubled": (doubled_column, "wrong elements are in column 200"),
    "gate_up_global of another expert": (
        of_another_expert("gate_up_global"),
        f"wrong rows are tokens of expert {EXPERT}, and all",
    ),
    "down_global of another expert": (
        of_another_expert("down_global"),
        f"wrong rows are tokens of expert {EXPERT}, and all",
    ),
    "one slot forgotten": (without_slot, r"best factor 0\.\d+"),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("case", CASES)
def test_both_judges_see_and_name(case, name):
    fault, words = FAULTS[name]
    interval = enclosed(case)
    actual = fault(case).to(interval.dtype)
    for judge_, truth in ((judge.bounded, interval), (judge.bitwise, interval.expected.to(interval.dtype))):
        text = verdict(judge_, actual, truth, **judge.context_of(case))
        assert re.search(words, text), text


@pytest.mark.parametrize("case", CASES)
def test_bounded_names_the_slot_or_expert_whose_contribution_is_wrong(case):
    interval = enclosed(case)
    text = verdict(judge.bounded, without_slot(case).to(interval.dtype), interval)
    assert f"the contribution of slot {case.shape.top_k - 1} is missing, in all" in text
    for factor in (1.02, 0.0, 2.0):
        actual = interval.expected + (factor - 1) * contribution(case)
        text = verdict(judge.bounded, actual.to(interval.dtype), interval)
        (line,) = (line for line in section(text, "scaled") if line.startswith("expert"))
        found = float(re.match(rf"expert {EXPERT} +by (\S+) ", line)[1])
        assert found == pytest.approx(factor, abs=0.002)


def test_bitwise_sees_a_single_ulp():
    expected = enclosed(LAYER).expected.to(BF16)
    actual = expected.clone()
    actual.view(torch.int16)[5, 17] += 1
    text = verdict(judge.bitwise, actual, expected)
    assert text.startswith("the output differs from the expected bits in 1 of 12288 elements")
    assert "1 by one ulp" in text


# ---- errors that stay inside a wide enclosure


def widened(interval: Interval, share: float) -> Interval:
    """The interval with ends that are at least `share` of the output's RMS away."""
    d = share * interval.expected.square().mean().sqrt()
    lower = torch.minimum(interval.lower, interval.expected - d).to(interval.dtype).double()
    upper = torch.maximum(interval.upper, interval.expected + d).to(interval.dtype).double()
    return dataclasses.replace(interval, lower=lower, upper=upper)


@pytest.mark.parametrize("case", CASES)
def test_an_expert_that_is_two_percent_off_is_seen_inside_a_wide_enclosure(case):
    """Every element is inside: what leaves is put on the end. The tokens of one expert are half or a quarter of all."""
    interval = widened(enclosed(case), 0.03)
    right = interval.expected.to(interval.dtype)
    judge.bounded(right, interval)
    scaled = interval.expected + 0.02 * contribution(case)
    inside = torch.minimum(torch.maximum(scaled, interval.lower), interval.upper).to(interval.dtype)
    text = verdict(judge.bounded, inside, interval)
    assert text.startswith("the output lies inside its enclosure, but parts of it are scaled")
    assert re.search(rf"expert {EXPERT} +by 1\.0(1|2)\d\d +allowed .* worst of 1 among", text), text


def test_an_expert_that_a_token_names_twice_counts_with_both_slots():
    case = dataclasses.replace(LAYER, routing="twice")
    interval = widened(enclosed(case), 0.03)
    scaled = interval.expected + 0.02 * contribution(case)
    inside = torch.minimum(torch.maximum(scaled, interval.lower), interval.upper).to(interval.dtype)
    assert re.search(rf"expert {EXPERT} +by 1\.0(1|2)\d\d ", verdict(judge.bounded, inside, interval))


def test_ids_that_name_no_expert_are_no_part():
    case = dataclasses.replace(LAYER, routing="dropped")
    interval = enclosed(case)
    judge.bounded(interval.expected.to(interval.dtype), interval)
    text = verdict(judge.bounded, (interval.expected * 1.02).to(interval.dtype), interval)
    (line,) = (line for line in section(text, "scaled") if line.startswith("expert"))
    assert line.endswith("worst of 8 among 8 experts")
    far = interval.topk_ids.masked_fill(interval.topk_ids >= 8, 2**31 - 1)  # and takes no memory
    assert (
        verdict(judge.bounded, (interval.expected * 1.02).to(BF16), dataclasses.replace(interval, topk_ids=far)) == text
    )
