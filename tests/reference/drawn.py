"""Drawn layers, changed versions of them, and what the reference makes of them."""

from dataclasses import replace
from functools import cache

import torch

from nvfp4_suite.contract.case import Case, Inputs, torch_dtype
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.reference import moe
from nvfp4_suite.reference.activations import Activation
from nvfp4_suite.reference.draws.layer import draw
from nvfp4_suite.reference.rounding import rounding_form

BF16 = Case(LayerShape(4, 2, 48, 80), 5)
FP16 = Case(LayerShape(4, 2, 80, 272), 4, dtype="fp16")
VARIED = (
    BF16,
    FP16,
    Case(LayerShape(4, 3, 48, 80), 5, "twice", dtype="fp16"),
    Case(LayerShape(4, 2, 48, 80), 5, activation="swigluoai", activation_limit=64.0, dtype="fp16"),
    Case(LayerShape(4, 2, 48, 80), 5, weight_on_input=True),
)
BF16_W4A4, FP16_W4A4 = (replace(case, format="w4a4") for case in (BF16, FP16))
VARIED_W4A4 = tuple(replace(case, format="w4a4") for case in VARIED)
ATOMICS = (
    Case(LayerShape(4, 3, 48, 80), 5, atomics=True),
    Case(LayerShape(4, 3, 48, 80), 5, "twice", atomics=True, dtype="fp16"),
    Case(LayerShape(4, 4, 80, 48), 5, atomics=True, activation="gelu"),
    Case(LayerShape(4, 3, 48, 80), 5, atomics=True, activation="swigluoai", activation_limit=64.0),
    Case(LayerShape(4, 3, 48, 80), 5, atomics=True, weight_on_input=True),
    Case(LayerShape(4, 3, 48, 80), 5, format="w4a4", atomics=True),
    Case(LayerShape(4, 4, 80, 48), 5, "dropped", format="w4a4", atomics=True, dtype="fp16"),
)


@cache
def drawn(case: Case) -> Inputs:
    return draw(case)


def output(inputs: Inputs, case: Case, **options) -> torch.Tensor:
    layer = (inputs.hidden_states, inputs.banks, inputs.topk_weights, inputs.topk_ids)
    options = {"rounding": case.format} | case.options | options
    return moe.expert_layer(*layer, **options).to(torch_dtype(case.dtype))


def with_banks(inputs: Inputs, **tensors) -> Inputs:
    return replace(inputs, banks=replace(inputs.banks, **tensors))


def routes(inputs: Inputs, case: Case) -> torch.Tensor:
    """What is summed over the slots, float64 [T, top_k, H]."""
    form = rounding_form(case.format, inputs.hidden_states.dtype)
    activation = Activation.of_options(case.activation, case.activation_alpha, case.activation_limit, form)
    layer = (inputs.hidden_states, moe.Weights.of_banks(inputs.banks, form), inputs.topk_weights, inputs.topk_ids)
    return moe.layer_routes(*layer, activation, case.weight_on_input, form)


def operands(inputs: Inputs, case: Case) -> list[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """For every expert with routes: (expert, its tokens, what enters its gate_up GEMM, what enters its down GEMM)."""
    form = rounding_form(case.format, inputs.hidden_states.dtype)
    activation = Activation.of_options(case.activation, case.activation_alpha, case.activation_limit, form)
    weights, found = moe.Weights.of_banks(inputs.banks, form), []
    for e, tokens, slots in moe.routes_by_expert(inputs.topk_ids, inputs.banks.experts):
        x = inputs.hidden_states[tokens].double()
        if case.weight_on_input:
            x = moe.weigh_input(x, inputs.topk_weights[tokens, slots].double(), form)
        x = moe.enter(x, weights.gate_up_input_scale, form)
        gate, up = moe.gate_up(x, weights.gate_up[e], weights.gate_up_alpha[e], form)
        h = moe.enter(moe.activate(gate, up, activation, form), weights.down_input_scale, form)
        found.append((e, tokens, x, h))
    return found
