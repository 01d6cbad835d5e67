"""Drawn layers, changed versions of them, and what the reference makes of them."""

from dataclasses import replace
from functools import cache

import torch

from nvfp4_suite.contract.case import Case, Inputs, torch_dtype
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.reference import moe
from nvfp4_suite.reference.orderfree import draw

BF16 = Case(LayerShape(4, 2, 48, 80), 5)
FP16 = Case(LayerShape(4, 2, 80, 272), 4, dtype="fp16")


@cache
def drawn(case: Case) -> Inputs:
    return draw(case)


def output(inputs: Inputs, case: Case) -> torch.Tensor:
    layer = moe.expert_layer(
        inputs.hidden_states, inputs.banks, inputs.topk_weights, inputs.topk_ids, rounding="w4a16", **case.options
    )
    return layer.to(torch_dtype(case.dtype))


def with_banks(inputs: Inputs, **tensors) -> Inputs:
    return replace(inputs, banks=replace(inputs.banks, **tensors))
