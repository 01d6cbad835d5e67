"""The case table covers what it says, and every order-free case has a lively result that all engines can be held to."""

from functools import cache
from itertools import product

import pytest
import torch

from nvfp4_suite.cases.layers import ALL, ATOMICS, ORDERFREE, RANDOM, W4A4, W4A16
from nvfp4_suite.contract.case import ROUTINGS, Case, Inputs, random_inputs, torch_dtype
from nvfp4_suite.contract.kernel import ACTIVATIONS, DTYPES, FORMATS
from nvfp4_suite.reference import formats, moe
from nvfp4_suite.reference.draws.layer import draw

from .drawn import operands


@cache
def inputs_of(case: Case) -> Inputs:
    return draw(case) if case.inputs == "orderfree" else random_inputs(case)


def test_ids_are_unique():
    assert len({case.id for case in ALL}) == len(ALL)


def test_the_tables_hold_what_their_names_say():
    assert {case.inputs for case in ORDERFREE} == {"orderfree"}
    assert {case.inputs for case in RANDOM} == {"random"}


@pytest.mark.parametrize("inputs", ["orderfree", "random"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_format_covers_every_option(name, inputs):
    table = [case for case in ALL if case.format == name and case.inputs == inputs]
    assert {case.activation for case in table} == set(ACTIVATIONS)
    assert {case.dtype for case in table} == set(DTYPES)
    assert {case.weight_on_input for case in table} == {False, True}
    assert {case.routing for case in table} >= set(ROUTINGS) - {"few"}
    assert inputs == "random" or "few" in {case.routing for case in table}


def test_the_formats_and_atomics_are_those_of_their_tables():
    assert {(case.format, case.atomics) for case in W4A16} == {("w4a16", False)}
    assert {(case.format, case.atomics) for case in W4A4} == {("w4a4", False)}
    assert {(case.format, case.atomics) for case in ATOMICS} == {(name, True) for name in FORMATS}
    assert {(case.format, case.dtype) for case in ATOMICS} == set(product(FORMATS, DTYPES))


def test_w4a16_covers_every_activation_in_both_dtypes():
    assert {(case.activation, case.dtype) for case in W4A16} == set(product(ACTIVATIONS, DTYPES))


@pytest.mark.parametrize("table", [W4A16, W4A4], ids=FORMATS)
@pytest.mark.parametrize("name", ["hidden", "intermediate"])
def test_orderfree_covers_ragged_sizes(name, table):
    assert {48, 80, 272} <= {getattr(case.shape, name) for case in table}


def test_orderfree_covers_the_extremes_of_tokens_experts_and_routes():
    assert min(case.tokens for case in ORDERFREE) == 1
    assert {case.shape.experts for case in ORDERFREE} >= {1, 16}
    assert {case.shape.top_k for case in ORDERFREE} >= {1, 2, 3, 8}
    assert any(
        len(inputs_of(case).topk_ids.unique()) < case.shape.experts for case in ORDERFREE if case.routing == "few"
    )


def test_one_expert_gets_full_blocks_and_one_token_more():
    """Token blocks have 16, 32, 64 or 128 rows, the larger the more tokens an expert has on average."""
    crowds = {(case.shape.experts, case.tokens) for case in ORDERFREE if case.shape.top_k == 1}
    assert crowds >= {(4, 16), (4, 17), (4, 64), (4, 65), (2, 64), (2, 65), (1, 65), (1, 128), (1, 129)}


@pytest.mark.parametrize("case", ALL)
def test_the_routing_is_what_the_case_says(case):
    ids = inputs_of(case).topk_ids
    dropped = (ids < 0) | (ids >= case.shape.experts)
    assert dropped.any() == (case.routing == "dropped")
    if case.routing == "hot":
        assert (ids[:, 0] == 0).all()
    if case.routing == "twice":
        assert (ids[:, 0] == ids[:, -1]).all()


@pytest.mark.parametrize("case", ALL)
def test_the_result_is_lively(case):
    """Finite, next to no zeros where a route exists, both signs, many values: a wrong kernel has no place to hide.

    Sums of few bits, as atomics need them, are sometimes 0, and have fewer values.
    """
    inputs = inputs_of(case)
    layer = (inputs.hidden_states, inputs.banks, inputs.topk_weights, inputs.topk_ids)
    out = moe.expert_layer(*layer, rounding=case.format, **case.options).to(torch_dtype(case.dtype))
    routed = ((inputs.topk_ids >= 0) & (inputs.topk_ids < case.shape.experts)).any(dim=1)
    assert (out[~routed] == 0).all()
    out = out[routed]
    assert out.isfinite().all()
    assert (out == 0).sum() <= max(1, out.numel() * (0.02 if case.atomics else 0.01))
    assert 0.35 < (out > 0).double().mean() < 0.65
    assert len(out.unique()) >= min(out.numel() // 2, 500 if case.atomics else 1000)


@pytest.mark.parametrize("case", W4A16 + W4A4)
def test_orderfree_banks_use_every_code_and_scale_mantissa(case):
    banks, intermediate = inputs_of(case).banks, case.shape.intermediate
    up = banks.gate_up_packed[:, intermediate:], banks.gate_up_scale[:, intermediate:]
    for packed, scale in (up, (banks.down_packed, banks.down_scale)):
        assert set(formats.unpack(packed).unique().tolist()) == set(range(16))
        byte = scale.view(torch.uint8)
        assert set((byte & 7).unique().tolist()) == set(range(8))
        assert len((byte >> 3).unique()) >= 6  # exponents


@pytest.mark.parametrize("case", ORDERFREE)
def test_every_expert_is_another_and_the_last_block_is_in_use(case):
    inputs, intermediate = inputs_of(case), case.shape.intermediate
    gates = inputs.banks.gate_up_packed[:, :intermediate]
    assert len(gates.unique(dim=0)) == case.shape.experts
    assert (inputs.hidden_states[:, -16:] != 0).any(dim=1).all()


def test_w4a4_has_zero_blocks_and_blocks_that_vanish():
    """A block of h vanishes where its scale rounds to 0 although its values are not 0."""
    zero_blocks = sum(int((_blocks(inputs_of(case).hidden_states) == 0).all(-1).sum()) for case in W4A4)
    assert zero_blocks > 100
    hot = next(case for case in W4A4 if case.routing == "hot")
    entered = [h for _, _, _, h in operands(inputs_of(hot), hot)]
    assert any((_blocks(h) == 0).all(-1).any() for h in entered)


def _blocks(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (-1, 16))


@pytest.mark.parametrize("case", ATOMICS)
def test_atomics_use_every_code_and_in_fp16_several_scale_mantissas(case):
    banks = inputs_of(case).banks
    assert set(formats.unpack(banks.gate_up_packed).unique().tolist()) >= {2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15}
    assert set(formats.unpack(banks.down_packed).unique().tolist()) == set(range(16))
    if case.dtype == "fp16":
        assert len((banks.down_scale.view(torch.uint8) & 7).unique()) >= 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_fp16_and_small_bf16_layers_carry_full_mantissas(dtype):
    """A global or routing weight that a kernel narrows to 16 bits must show."""
    inputs = inputs_of(next(case for case in W4A16 if case.dtype == dtype))
    for values in (inputs.banks.down_global, inputs.topk_weights):
        assert (values.bfloat16().float() != values).double().mean() > 0.9
