"""Is what these tests share as good as what it stands for, and does it see a fault wherever it is?"""

import dataclasses

import pytest
import torch

from nvfp4_suite.contract import case as contract_case
from nvfp4_suite.contract.case import Case, random_inputs
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.reference import bounds, moe

from ..moe.subject import inputs_on, layer_arguments
from .layer import JUDGED, enclosed, expected_of, first_tokens, judged, rows_of

CASE = Case(LayerShape(4, 2, 64, 48), 3 * JUDGED, inputs="random")
FAULTS = {
    "scaled": lambda row: row * 1.1,
    "zeroed": lambda row: row * 0,
    "NaN": lambda row: row * torch.nan,
    "one element": lambda row: torch.where(torch.arange(len(row)) == 7, row + 1, row),
}


def test_inputs_are_the_same_on_every_device_and_in_pieces(device, monkeypatch):
    expected = random_inputs(CASE)
    monkeypatch.setattr(contract_case, "PIECE", 1000)
    found = inputs_on(CASE, device)
    assert found.hidden_states.device.type == found.banks.device.type == device
    for mine, other in zip(_tensors(found), _tensors(expected), strict=True):
        assert torch.equal(mine.cpu().contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def _tensors(inputs) -> list[torch.Tensor]:
    x, banks, weights, ids = layer_arguments(inputs)
    return [x, weights, ids, *(tensor for tensor in vars(banks).values() if tensor is not None)]


@pytest.mark.parametrize("rounding", [None, "w4a16"])
def test_an_expert_at_a_time_gives_the_whole_layer(rounding):
    inputs = random_inputs(CASE)
    whole = moe.expert_layer(*layer_arguments(inputs), rounding=rounding, **CASE.options)
    assert torch.equal(expected_of(inputs, CASE, rounding), whole)


def test_an_expert_at_a_time_gives_the_same_enclosure():
    inputs = random_inputs(CASE)
    whole = bounds.enclose(*layer_arguments(inputs), **CASE.options)
    found = enclosed(inputs, CASE, "w4a16")
    for name in ("lower", "upper", "expected", "routes", "topk_ids"):
        assert torch.equal(getattr(found, name), getattr(whole, name)), name


def test_the_first_tokens_of_a_layer_are_a_layer():
    inputs = random_inputs(CASE)
    few, all_rows = (enclosed(some, CASE, "w4a16") for some in (first_tokens(inputs, 5), inputs))
    for name, value in vars(rows_of(all_rows, slice(5))).items():
        assert torch.equal(getattr(few, name), value) if isinstance(value, torch.Tensor) else name == "dtype"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_row_is_seen_wherever_it_is(fault):
    """Most rows are none of those that the judge gets in any case."""
    interval = enclosed(random_inputs(CASE), CASE, "w4a16")
    right = interval.expected.to(interval.dtype)
    assert judged(right, interval) == 0
    for row in range(CASE.tokens):
        wrong = right.clone()
        wrong[row] = FAULTS[fault](right[row])
        with pytest.raises(AssertionError, match="the output leaves its enclosure"):
            judged(wrong, interval)


def test_a_route_that_is_lost_is_seen():
    inputs = random_inputs(CASE)
    interval = enclosed(inputs, CASE, "w4a16")
    for token in (0, 17, CASE.tokens - 1):
        ids = inputs.topk_ids.clone()
        ids[token, -1] = -1
        lost = expected_of(dataclasses.replace(inputs, topk_ids=ids), CASE, "w4a16").to(interval.dtype)
        with pytest.raises(AssertionError, match="the output leaves its enclosure"):
            judged(lost, interval)
