"""`prove` refuses every input whose result could depend on the order or on the formula, and says where and why."""

import math
from dataclasses import replace

import pytest
import torch

from nvfp4_suite.contract.banks import ExpertBanks
from nvfp4_suite.contract.case import Case, Inputs
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.reference import orderfree
from nvfp4_suite.reference.orderfree import OrderDependent, draw, prove

from .drawn import BF16, FP16, drawn, output, with_banks


def scaled(name: str, factor: float):
    """A change of inputs: the globals or routing weights `name`, gate rows and up rows apart, times `factor`."""

    def change(inputs: Inputs) -> Inputs:
        if name == "weights":
            return replace(inputs, topk_weights=inputs.topk_weights * factor)
        if name == "down":
            return with_banks(inputs, down_global=inputs.banks.down_global * factor)
        rows = slice(None, inputs.banks.intermediate) if name == "gate" else slice(inputs.banks.intermediate, None)
        values = inputs.banks.gate_up_global.clone()
        values[:, rows] *= factor
        return with_banks(inputs, gate_up_global=values)

    return change


def rescaled_blocks(name: str, first: int, others: int):
    """A change of inputs: every row's first scale byte and all its others."""

    def change(inputs: Inputs) -> Inputs:
        scale = torch.full_like(getattr(inputs.banks, name).view(torch.uint8), others)
        scale[..., 0] = first
        return with_banks(inputs, **{name: scale.view(torch.float8_e4m3fn)})

    return change


def first_slot_faint(inputs: Inputs) -> Inputs:
    return replace(inputs, topk_weights=inputs.topk_weights * torch.tensor([2.0**-20, 1.0]))


def in_token_3(value: float):
    """A change of inputs: one value of token 3."""

    def change(inputs: Inputs) -> Inputs:
        x = inputs.hidden_states.clone()
        x[3, 7] = value
        return replace(inputs, hidden_states=x)

    return change


def outputs_beyond_fp16(inputs: Inputs) -> Inputs:
    """Two equal routes a token, each finite: the largest between 2^15 and 2^16."""
    inputs = replace(inputs, topk_weights=torch.ones_like(inputs.topk_weights))
    largest = output(inputs, TWICE).abs().max().item() / 2
    return scaled("down", 2.0 ** (15 - math.floor(math.log2(largest))))(inputs)


TWICE = Case(LayerShape(1, 2, 48, 48), 4, "twice", dtype="fp16")

REFUSED = {
    "too fine a scale, gate_up": (BF16, rescaled_blocks("gate_up_scale", 0x01, 0x7E), "gate_up sum: magnitudes"),
    "too fine a scale, down": (BF16, rescaled_blocks("down_scale", 0x01, 0x7E), "down sum: magnitudes"),
    "too fine an activation": (BF16, in_token_3(2.0**-20), r"gate_up sum: magnitudes .* token 3, slot"),
    "NaN scale": (BF16, rescaled_blocks("down_scale", 0x7F, 0x38), "down sum"),
    "gates of 5": (BF16, scaled("gate", 5 / orderfree.GATE_STEP), r"silu gate: .* gate = -?\d*[05],"),
    "fp16 overflow in gate_up": (FP16, scaled("up", 2.0**19), r"gate_up result: not finite in torch.float16"),
    "fp16 overflow in the activation": (FP16, scaled("up", 2.0**10), r"activation: not finite in torch.float16"),
    "fp16 overflow of a route": (FP16, scaled("down", 2.0**26), r"down result: not finite in torch.float16"),
    "fp16 overflow of the output": (TWICE, outputs_beyond_fp16, r"output: not finite in torch.float16 at token"),
    "fp16 overflow of the input": (
        replace(FP16, weight_on_input=True),
        scaled("weights", 2.0**17),
        "weighted input: not finite in torch.float16",
    ),
    "top_k too wide": (BF16, first_slot_faint, r"top_k sum: magnitudes .* token \d, column \d+: g = "),
    "product below fp32": (BF16, scaled("down", 2.0**-120), r"down sum \* global: below fp32's normal range"),
    "weighted product below fp32": (BF16, scaled("weights", 2.0**-120), "down result: below fp32's normal range"),
    "grid below fp32": (BF16, in_token_3(2.0**-120), "gate_up sum: grid below fp32's normal range at .* token 3"),
}


@pytest.mark.parametrize(("case", "change", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_prove_refuses_and_says_why(case, change, message):
    inputs = change(drawn(case))
    with pytest.raises(OrderDependent, match=message):
        prove(inputs, case)


def one_sum(*x: float, **options) -> tuple[Inputs, Case]:
    """A layer of E = 1, H = I = 16 whose gate_up rows add up the values `x` of one token; its down rows are zero."""
    ones = torch.full((1, 32, 8), 0x22, dtype=torch.uint8)  # code 2 is 1.0
    scale = torch.full((1, 32, 1), 0x38, dtype=torch.uint8).view(torch.float8_e4m3fn)  # 1.0
    down = (torch.zeros(1, 16, 8, dtype=torch.uint8), scale[:, :16].contiguous(), torch.ones(1, 16))
    row = torch.tensor([[*x, *[0.0] * (16 - len(x))]]).bfloat16()
    banks = ExpertBanks(ones, scale, torch.ones(1, 32), *down)
    inputs = Inputs(row, banks, torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int32))
    return inputs, Case(LayerShape(1, 1, 16, 16), 1, **options)


def test_the_limit_is_2_to_the_22_grids_and_not_one_more():
    most = [255 * 2.0**14, 255 * 2.0**6, 63.0]  # 2^22 - 1
    prove(*one_sum(*most))
    with pytest.raises(OrderDependent, match=r"expert 0, token 0, slot 0, column 0: g = 1, sum = 4.1943e\+06"):
        prove(*one_sum(*most, 1.0))
    with pytest.raises(OrderDependent, match="gate_up sum: magnitudes"):
        prove(*one_sum(*most, -1.0))


EDGES = {  # the last gates that saturate, then the first that do not
    "silu": [(40.0, 39.75), (-1024.0, -1020.0)],
    "gelu": [(10.0, 9.9375), (-16.0, -15.9375)],
    "gelu_tanh": [(10.0, 9.9375), (-16.0, -15.9375)],
    "swigluoai": [(23.625, 23.5), (-604.0, -600.0)],  # times 1.702
}


@pytest.mark.parametrize("activation", EDGES)
def test_gates_must_saturate(activation):
    for inside, outside in EDGES[activation]:
        for gate in (inside, 0.0):
            prove(*one_sum(gate, activation=activation, activation_limit=64.0))
        with pytest.raises(OrderDependent, match=f"{activation} gate: .*column 0: gate = {outside:g}, alpha"):
            prove(*one_sum(outside, activation=activation, activation_limit=64.0))


def test_a_swigluoai_limit_that_the_recipe_cannot_serve_is_refused():
    with pytest.raises(OrderDependent, match=r"swigluoai gate: .* gate = 7, alpha = 1\.702"):
        draw(replace(BF16, activation="swigluoai", activation_limit=7.0))
    with pytest.raises(OrderDependent, match=r"activation: not finite in torch\.float16"):
        draw(replace(FP16, activation="swigluoai", activation_limit=256.0))
