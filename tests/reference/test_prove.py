"""`prove` refuses every input whose result could depend on the order or on the formula, and says where and why."""

import math
from dataclasses import replace

import pytest
import torch

from nvfp4_suite.contract.banks import ExpertBanks
from nvfp4_suite.contract.case import Case, Inputs
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.reference.draws.layer import GATE_STEP, draw
from nvfp4_suite.reference.orderfree import OrderDependent, prove

from .drawn import ATOMICS, BF16, BF16_W4A4, FP16, FP16_W4A4, drawn, output, with_banks


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


def input_scales(name: str, factor: float):
    """A change of inputs: the input scales `name` times `factor`."""

    def change(inputs: Inputs) -> Inputs:
        return with_banks(inputs, **{name: getattr(inputs.banks, name) * factor})

    return change


def both(*changes):
    """One change after the other."""

    def change(inputs: Inputs) -> Inputs:
        for one in changes:
            inputs = one(inputs)
        return inputs

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
    "NaN scale": (BF16, rescaled_blocks("down_scale", 0x7F, 0x38), "down sum: grid .* g = nan"),
    "gates of 5": (BF16, scaled("gate", 5 / GATE_STEP), r"silu gate: .* gate = -?\d*[05],"),
    "a weight on the input that opens gates": (
        replace(BF16, weight_on_input=True),
        scaled("weights", 2.0**-10),
        "silu gate: .* gate = ",
    ),
    "fp16 overflow in gate_up": (FP16, scaled("up", 2.0**19), r"gate_up result: not finite in torch.float16"),
    "fp16 overflow in the activation": (FP16, scaled("up", 2.0**10), r"activation: not finite in torch.float16"),
    "fp16 overflow of a route": (FP16, scaled("down", 2.0**26), r"down result: not finite in torch.float16"),
    "fp16 overflow of the output": (TWICE, outputs_beyond_fp16, r"output: not finite in torch.float16 at token"),
    "fp16 overflow of the input": (
        replace(FP16, weight_on_input=True),
        scaled("weights", 2.0**17),
        "weighted input: not finite in torch.float16",
    ),
    "an infinity": (BF16, in_token_3(math.inf), "^input: not finite in torch.bfloat16 at .* token 3, slot"),
    "a NaN": (BF16_W4A4, in_token_3(math.nan), "^input: not finite in torch.bfloat16 at .* token 3, slot"),
    "top_k too wide": (BF16, first_slot_faint, r"top_k sum: magnitudes .* token \d, column \d+: g = "),
    "input below fp32": (BF16, in_token_3(2.0**-130), "^input: below fp32's normal range at .* token 3"),
    "alpha below fp32": (BF16, scaled("down", 2.0**-120), "down alpha: below fp32's normal range"),
    "routing weight below fp32": (BF16, scaled("weights", 2.0**-130), "routing weight: below fp32's normal range"),
    "product below fp32": (
        BF16,
        both(scaled("up", 2.0**-40), scaled("down", 2.0**-95)),
        r"down sum \* alpha: below fp32's normal range",
    ),
    "weighted product below fp32": (BF16, scaled("weights", 2.0**-120), "down result: below fp32's normal range"),
    "grid below fp32": (BF16, in_token_3(2.0**-120), "gate_up sum: grid below fp32's normal range at .* token 3"),
    "too fine a scale in W4A4, gate_up": (
        BF16_W4A4,
        rescaled_blocks("gate_up_scale", 0x01, 0x7E),
        "gate_up sum: magnitudes",
    ),
    "too fine a scale in W4A4, down": (FP16_W4A4, rescaled_blocks("down_scale", 0x01, 0x7E), "down sum: magnitudes"),
    "gates of 5 in W4A4": (BF16_W4A4, scaled("gate", 2.0**-20), "silu gate: .* gate = "),
    "fp32 overflow in the activation": (
        BF16_W4A4,
        both(scaled("gate", 2.0**40), scaled("up", 2.0**70)),
        "activation: not finite in torch.float32",
    ),
    "input saturates": (
        BF16_W4A4,
        input_scales("gate_up_input_scale", 2.0**-20),
        r"gate_up input: block scale above 448 at expert \d, token \d, slot \d, block \d: scale = ",
    ),
    "h saturates": (FP16_W4A4, input_scales("down_input_scale", 2.0**-20), "down input: block scale above 448"),
    "no scale": (BF16_W4A4, input_scales("down_input_scale", 2.0**-135), "down input: input scale beyond 7.88"),
}


@pytest.mark.parametrize(("case", "change", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_prove_refuses_and_says_why(case, change, message):
    inputs = change(drawn(case))
    with pytest.raises(OrderDependent, match=message):
        prove(inputs, case)


def one_sum(*x: float, **options) -> tuple[Inputs, Case]:
    """A layer of one expert, I = 16, whose gate_up rows add up the values `x` of one token; its down rows are zero."""
    hidden = -(-len(x) // 16) * 16
    ones = torch.full((1, 32, hidden // 2), 0x22, dtype=torch.uint8)  # code 2 is 1.0
    scale = torch.full((1, 32, hidden // 16), 0x38, dtype=torch.uint8).view(torch.float8_e4m3fn)  # 1.0
    down = torch.zeros(1, hidden, 8, dtype=torch.uint8), torch.ones(1, hidden, 1).to(torch.float8_e4m3fn)
    input_scales = (torch.ones(1), torch.full((1,), 2.0**20)) if options.get("format") == "w4a4" else ()
    banks = ExpertBanks(ones, scale, torch.ones(1, 32), *down, torch.ones(1, hidden), *input_scales)
    row = torch.tensor([[*x, *[0.0] * (hidden - len(x))]]).bfloat16()
    inputs = Inputs(row, banks, torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int32))
    return inputs, Case(LayerShape(1, 1, hidden, 16), 1, **options)


def test_the_limit_is_2_to_the_22_grids_and_not_one_more():
    most = [255 * 2.0**14, 255 * 2.0**6, 63.0]  # 2^22 - 1
    prove(*one_sum(*most))
    with pytest.raises(OrderDependent, match=r"expert 0, token 0, slot 0, column 0: g = 1, sum = 4.1943e\+06"):
        prove(*one_sum(*most, 1.0))
    with pytest.raises(OrderDependent, match="gate_up sum: magnitudes"):
        prove(*one_sum(*most, -1.0))


def test_the_limit_of_w4a4_is_2_to_the_20_grids_and_not_one_more():
    """Three blocks of scales 2^4, 2^-3 and 2^-9, a grid being half of the last: 127 * 2^13 + 127 * 2^6 + 63 grids."""
    units_127, units_63 = [6.0] * 10 + [3.0, 0.5] + [0.0] * 4, [6.0] * 5 + [1.5]
    blocks = [*(16 * code for code in units_127), *(code / 8 for code in units_127), *(code / 512 for code in units_63)]
    prove(*one_sum(*blocks, format="w4a4"))
    for one_more in (2.0**-10, -(2.0**-10)):
        with pytest.raises(OrderDependent, match=r"gate_up sum: magnitudes .* column 0: g = 0\.000976562, sum = 1024"):
            prove(*one_sum(*blocks, one_more, format="w4a4"))
    prove(*one_sum(*blocks, 2.0**-10))  # without quantization there are two bits more


def test_the_grid_is_that_of_the_products_and_not_of_each_side():
    """The finest weight meets a zero."""
    inputs, case = one_sum(255 * 2.0**14, 255 * 2.0**6, 63.0)
    packed = inputs.banks.gate_up_packed.clone()
    packed[..., 7] = 0x11  # +0.5, where x is 0
    prove(with_banks(inputs, gate_up_packed=packed), case)
    packed[..., 1] = 0x21  # +0.5 where x is 63
    with pytest.raises(OrderDependent, match=r"gate_up sum: magnitudes .* g = 0\.5"):
        prove(with_banks(inputs, gate_up_packed=packed), case)


def test_w4a4_needs_input_scales():
    with pytest.raises(ValueError, match="gate_up_input_scale is None, but should be given"):
        prove(drawn(BF16), BF16_W4A4)


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


@pytest.mark.parametrize("case", ATOMICS)
def test_a_proof_for_atomics_is_one_without_them(case):
    prove(drawn(case), replace(case, atomics=False))
