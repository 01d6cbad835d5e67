"""Outputs and enclosures for the judges' own tests, and what a judge says of them."""

import functools
from collections.abc import Callable

import pytest
import torch

from nvfp4_suite.contract.case import Case, Inputs, random_inputs
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.reference import bounds

BF16, FP16, F64 = torch.bfloat16, torch.float16, torch.float64
NAN, INF = torch.nan, torch.inf

LAYER = Case(LayerShape(8, 4, 384, 96), 32, "random", "random")
TOP_8 = Case(LayerShape(16, 8, 384, 96), 48, "random", "random")


def output(rows=24, columns=96, dtype=BF16) -> torch.Tensor:
    """A plausible output without zeros."""
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(5))
    return (x + 0.01 * x.sign()).to(dtype)


def wide(expected: torch.Tensor, relative: float) -> bounds.Interval:
    """An enclosure of `relative` of the output's RMS on both sides."""
    e = expected.double()
    d = relative * e.nan_to_num(0).square().mean().sqrt()
    return bounds.Interval((e - d).to(expected.dtype).double(), (e + d).to(expected.dtype).double(), e, expected.dtype)


def verdict(judge_: Callable, *args, **context) -> str:
    """The text with which a judge fails."""
    with pytest.raises(AssertionError) as error:
        judge_(*args, **context)
    return str(error.value)


def section(text: str, label: str) -> list[str]:
    """The lines of one section of such a text; none if it has no such section."""
    found, inside = [], False
    for line in text.splitlines()[1:]:
        head = line.split("  ", 1)[0]
        inside = head == label if head else inside
        if inside:
            found.append(line.removeprefix(head).strip())
    return found


@functools.cache
def inputs_of(case: Case) -> Inputs:
    return random_inputs(case)


def arguments(inputs: Inputs) -> tuple:
    return inputs.hidden_states, inputs.banks, inputs.topk_weights, inputs.topk_ids


@functools.cache
def enclosed(case: Case) -> bounds.Interval:
    """The enclosure of a layer on inputs like real ones; not to be changed."""
    return bounds.enclose(*arguments(inputs_of(case)), **case.options)
