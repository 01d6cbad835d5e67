"""Whole layers of published shapes: made, run and judged where the kernel runs, as they have gigabytes of weights."""

import dataclasses

import torch
from torch import Tensor

from nvfp4_suite.contract.case import Case, Inputs
from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape
from nvfp4_suite.reference import bounds, judge, moe
from nvfp4_suite.reference.activations import Activation
from nvfp4_suite.reference.bounds import Interval
from nvfp4_suite.reference.rounding import rounding_form

from ..engine import on_gpu
from ..moe.subject import layer_arguments

# Small enough for the interpreter, where it shows that these tests work; both K are ragged.
SMALL = {"small": LayerShape(6, 2, 80, 48)}
SHAPES: dict[str, LayerShape] = SMALL | dict(on_gpu(list(CHECKPOINTS.items())))
ACTIVATIONS = {"Gemma-4-26B-A4B": "gelu_tanh", "MiniMax-M3": "swigluoai"}  # of their configurations; silu else
JUDGED = 16  # rows that the judge looks at in full, of those that stay in their enclosures


def activation(name: str) -> str:
    return ACTIVATIONS.get(name, "silu")


def first_tokens(inputs: Inputs, tokens: int) -> Inputs:
    names = ("hidden_states", "topk_weights", "topk_ids")
    return dataclasses.replace(inputs, **{name: getattr(inputs, name)[:tokens] for name in names})


def weights_of(inputs: Inputs) -> moe.Weights:
    """The layer's weights as the reference's stages take them, without rounding."""
    return moe.Weights.of_banks(inputs.banks, rounding_form(None, inputs.hidden_states.dtype))


def expected_of(inputs: Inputs, case: Case, rounding: str) -> Tensor:
    """What moe.expert_layer gives in the form `rounding`."""
    form = rounding_form(rounding, inputs.hidden_states.dtype)
    gated = Activation.of_options(case.activation, case.activation_alpha, case.activation_limit, form)
    x, banks, weights, ids = layer_arguments(inputs)
    decoded = moe.Weights.of_banks(banks, form)
    return moe.combine(moe.layer_routes(x, decoded, weights, ids, gated, case.weight_on_input, form), form)


def enclosed(inputs: Inputs, case: Case, rounding: str) -> Interval:
    return bounds.enclose(*layer_arguments(inputs), rounding=rounding, **case.options)


def rows_of(interval: Interval, rows: Tensor | slice) -> Interval:
    names = ("lower", "upper", "expected", "routes", "topk_ids")
    return dataclasses.replace(interval, **{name: getattr(interval, name)[rows] for name in names})


def judged(actual: Tensor, interval: Interval, **context: object) -> float:
    """Holds every row of `actual` to its enclosure; the largest error there, in enclosures' half-widths.

    Where the interval lies, because the judge takes minutes for thousands of rows: it gets those that leave theirs, and
    of the others some of the first, the last and in between, to look for what is scaled.
    """
    actual = actual.to(interval.expected.device)
    outside = ~((interval.lower <= actual) & (actual <= interval.upper)).all(1)
    spread = torch.linspace(0, len(actual) - 1, min(JUDGED, len(actual)), device=actual.device).long()
    rows = torch.cat([spread, outside.nonzero()[:JUDGED, 0]]).unique()
    judge.bounded(actual[rows], rows_of(interval, rows), **context, rows=rows.tolist())
    width = torch.maximum(interval.upper - interval.expected, interval.expected - interval.lower)
    return ((actual - interval.expected).abs() / width)[width > 0].max().item()
