"""The failures that reference/README.md shows are what the judges print today, apart from the environment."""

import re

import pytest
import torch

from nvfp4_suite.contract.case import Case, hashed
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.reference import judge, moe, quantize
from nvfp4_suite.reference.draws.layer import draw

from .outputs import arguments, enclosed, verdict
from .tree import ROOT

PAGE = ROOT / "reference" / "README.md"


def bitwise_example() -> str:
    """Expert 3's down projection takes the global scale of expert 4."""
    case = Case(LayerShape(8, 4, 272, 80), 33)
    inputs = draw(case)
    expected = moe.expert_layer(*arguments(inputs), **case.options, rounding="w4a16").bfloat16()
    inputs.banks.down_global[3] = inputs.banks.down_global[4]
    actual = moe.expert_layer(*arguments(inputs), **case.options, rounding="w4a16").bfloat16()
    return verdict(judge.bitwise, actual, expected, **judge.context_of(case), kernel="w4a16")


def bounded_example() -> str:
    """What the last slot contributes is 2 % too large."""
    case = Case(LayerShape(4, 2, 80, 48), 48, "random", "random")
    interval = enclosed(case)
    actual = (interval.expected + 0.02 * interval.routes[:, 1]).bfloat16()
    return verdict(judge.bounded, actual, interval, **judge.context_of(case), kernel="w4a16")


def boundary_example() -> str:
    """A block scale is one step too large, and in another block a code."""
    x = (hashed("example", 4, 32).double() / 2**31 - 1).float() / torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    s_global = quantize.global_scale_of(x.abs().max(), "vllm")
    packed, scale = quantize.quantize(x, s_global, "vllm")
    packed[1, 5] += 1
    scale[2, 0] += 1
    error = 2.0**-14 * x.double().abs()
    return verdict(judge.boundary, packed, scale, x.double() - error, x.double() + error, s_global, stage="input")


EXAMPLES = [bitwise_example, bounded_example, boundary_example]


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_page_shows_what_the_judge_prints(example):
    shown = [_without_environment(block) for block in re.findall(r"```text\n(.*?)\n```", PAGE.read_text(), re.S)]
    printed = example()
    assert _without_environment(printed) in shown, f"the page should show:\n\n{printed}\n"


def _without_environment(text: str) -> str:
    return re.sub(r"\nenvironment .*", "", text)
