"""Drawn inputs give the same bits in every order of summation, and they notice small faults."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from nvfp4_suite.cases.layers import RANDOM
from nvfp4_suite.contract.case import Case, Inputs, hashed, random_inputs
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.reference import formats, moe, orderfree
from nvfp4_suite.reference.orderfree import OrderDependent, prove

from .drawn import BF16, FP16, drawn, output, with_banks

VARIED = (
    BF16,
    FP16,
    Case(LayerShape(4, 3, 48, 80), 5, "twice", dtype="fp16"),
    Case(LayerShape(4, 2, 48, 80), 5, activation="swigluoai", activation_limit=64.0, dtype="fp16"),
    Case(LayerShape(4, 2, 48, 80), 5, weight_on_input=True),
)


# Any order of summation


def all_terms(inputs: Inputs, case: Case) -> list[torch.Tensor]:
    """The addends [..., K] of every sum in the layer, in float64: gate_up's and down's per expert, and top_k's."""
    form = moe.rounding_form("w4a16", inputs.hidden_states.dtype)
    activation = moe.Activation(case.activation, case.activation_alpha, case.activation_limit)
    banks, terms = inputs.banks, []
    gate_up = formats.dequantize_blocks(banks.gate_up_packed, banks.gate_up_scale)
    down = formats.dequantize_blocks(banks.down_packed, banks.down_scale)
    routes = torch.zeros(*inputs.topk_ids.shape, banks.hidden, dtype=torch.float64)
    for e, tokens, slots in moe.routes_by_expert(inputs.topk_ids, banks.experts):
        x, w = inputs.hidden_states[tokens].double(), inputs.topk_weights[tokens, slots].double()
        if case.weight_on_input:
            x, w = moe.weigh_input(x, w, form), None
        gate, up = moe.gate_up(x, gate_up[e], banks.gate_up_global[e].double(), form)
        h = moe.activate(gate, up, activation, form)
        terms += [x[:, None] * gate_up[e], h[:, None] * down[e]]
        routes[tokens, slots] = moe.down(h, down[e], banks.down_global[e].double(), w, form)
    return [*terms, routes.transpose(1, 2)]


def orders(k: int) -> list[torch.Tensor]:
    """Forwards, backwards, even k before odd k, and three shuffles."""
    forwards = torch.arange(k)
    shuffles = [hashed(f"order {i}", k).argsort() for i in range(3)]
    return [forwards, forwards.flip(0), torch.cat([forwards[0::2], forwards[1::2]]), *shuffles]


def sum_fp32(terms: torch.Tensor) -> torch.Tensor:
    """The sum over the last dimension, one fp32 addition after the other."""
    total = torch.zeros(terms.shape[:-1])
    for k in range(terms.shape[-1]):
        total = total + terms[..., k].float()
    return total


def sums_that_differ(terms: torch.Tensor) -> int:
    """How many fp32 sums differ from the float64 sum in some order, or in two halves added at the end."""
    exact, k = terms.sum(-1), terms.shape[-1]
    tried = [sum_fp32(terms[..., order]) for order in orders(k)]
    tried.append(sum_fp32(terms[..., : k // 2]) + sum_fp32(terms[..., k // 2 :]))
    return int(torch.stack([total != exact for total in tried]).any(0).sum())


@pytest.mark.parametrize("case", VARIED)
def test_every_order_of_summation_gives_the_same_bits(case):
    assert sum(sums_that_differ(terms) for terms in all_terms(drawn(case), case)) == 0


def test_random_inputs_do_depend_on_the_order_and_are_refused():
    case = RANDOM[0]
    inputs = random_inputs(case)
    assert sum(sums_that_differ(terms) for terms in all_terms(inputs, case)) > 100
    with pytest.raises(OrderDependent):
        prove(inputs, case)


def test_lowest_bit_is_the_largest_power_of_two_that_divides():
    values = [1.0, -1.5, 0.75, 6.0, -448.0, 2.0**-24, 3 * 2.0**-149, 2.0**22 + 1, 1 + 2.0**-52, 2.0**1000, 1 / 3]
    for value, power in zip(
        values, orderfree.lowest_bit(torch.tensor(values, dtype=torch.float64)).tolist(), strict=True
    ):
        quotient = Fraction(value) / Fraction(power)
        assert quotient.denominator == 1 and quotient.numerator % 2, (value, power)
    assert orderfree.lowest_bit(torch.zeros(1, dtype=torch.float64)).isinf()


# What a drawn case would notice

FAULTS = {
    "nibbles swapped": lambda packed, scale: (packed << 4 | packed >> 4, scale),
    "scales one block late": lambda packed, scale: (packed, scale.roll(1, dims=2)),
    "last block lost": lambda packed, scale: (packed, torch.cat([scale[..., :-1], 0 * scale[..., -1:]], dim=2)),
    "rows one late": lambda packed, scale: (packed.roll(1, dims=1), scale.roll(1, dims=1)),
    "experts one late": lambda packed, scale: (packed.roll(1, dims=0), scale.roll(1, dims=0)),
    "scales all of one": lambda packed, scale: (packed, scale & 0x78),  # mantissas dropped
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
@pytest.mark.parametrize("bank", ["gate_up", "down"])
@pytest.mark.parametrize("case", VARIED)
def test_a_fault_in_reading_a_bank_shows_in_every_token(case, bank, fault):
    inputs = drawn(case)
    packed, scale = fault(
        getattr(inputs.banks, f"{bank}_packed"), getattr(inputs.banks, f"{bank}_scale").view(torch.uint8)
    )
    read = {f"{bank}_packed": packed, f"{bank}_scale": scale.contiguous().view(torch.float8_e4m3fn)}
    differs = output(with_banks(inputs, **read), case) != output(inputs, case)
    assert differs.any(dim=1).all()
    assert differs.double().mean() > 0.5


@pytest.mark.parametrize("name", ["gate_up_global", "down_global"])
@pytest.mark.parametrize("case", VARIED)
def test_the_globals_of_another_expert_show_in_every_token(case, name):
    inputs = drawn(case)
    other = with_banks(inputs, **{name: getattr(inputs.banks, name).roll(1, dims=0)})
    assert (output(other, case) != output(inputs, case)).any(dim=1).all()


@pytest.mark.parametrize("case", VARIED[:4])
def test_globals_and_routing_weights_in_bf16_show_in_every_token(case):
    inputs = drawn(case)
    narrow_global = with_banks(inputs, down_global=inputs.banks.down_global.bfloat16().float())
    narrow_weights = replace(inputs, topk_weights=inputs.topk_weights.bfloat16().float())
    for narrow in (narrow_global, narrow_weights):
        assert (output(narrow, case) != output(inputs, case)).any(dim=1).all()


@pytest.mark.parametrize("case", VARIED)
def test_where_the_weight_goes_shows_in_every_token(case):
    other = replace(case, weight_on_input=not case.weight_on_input)
    assert (output(drawn(case), case) != output(drawn(case), other)).any(dim=1).all()


def used_nibbles(inputs: Inputs, case: Case, bank: str) -> list[tuple[int, int, int, int]]:
    """(token, expert, row, k) of weights that count: down's and up's whose x is not 0 and whose gate is open."""
    found, terms = [], iter(all_terms(inputs, case))
    for expert, tokens, _ in moe.routes_by_expert(inputs.topk_ids, inputs.banks.experts):
        used, down = next(terms) != 0, next(terms) != 0
        if bank == "down":
            used = down
        else:
            used[:, : inputs.banks.intermediate] = False
            used[:, inputs.banks.intermediate :] &= down.any(dim=1)[..., None]
        found += [(int(tokens[r]), expert, row, k) for r, row, k in used.nonzero().tolist()]
    return found


@pytest.mark.parametrize("bank", ["gate_up", "down"])
@pytest.mark.parametrize("case", VARIED)
def test_a_single_wrong_nibble_shows(case, bank):
    inputs, name = drawn(case), f"{bank}_packed"
    expected, nibbles, seen = output(inputs, case), used_nibbles(inputs, case, bank), 0
    sample = [nibbles[i % len(nibbles)] for i in hashed(f"nibbles {case.id} {bank}", 20).tolist()]
    for token, expert, row, k in sample:
        packed = getattr(inputs.banks, name).clone()
        packed[expert, row, k // 2] ^= 1 << 4 * (k % 2)
        seen += int((output(with_banks(inputs, **{name: packed}), case)[token] != expected[token]).any())
    assert seen >= 18  # of 20: a small one may vanish in the last rounding
