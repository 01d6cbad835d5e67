"""What must not change a layer's bits: the order of tokens, the numbering of experts, the order of the blocks of K."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nvfp4_suite.contract.banks import ExpertBanks
from nvfp4_suite.contract.case import Case, Inputs
from nvfp4_suite.contract.shapes import LayerShape

from .drawn import drawn, output

SHAPE = LayerShape(4, 3, 64, 80)
CASES = (
    Case(SHAPE, 5),
    Case(SHAPE, 5, "twice", dtype="fp16"),
    Case(SHAPE, 5, format="w4a4"),
    Case(SHAPE, 5, "dropped", format="w4a4", dtype="fp16", weight_on_input=True),
)
every_case = pytest.mark.parametrize("case", CASES)


def order(count: int) -> st.SearchStrategy[list[int]]:
    return st.permutations(range(count))


def reordered(banks: ExpertBanks, **orders: tuple[int, list[int]]) -> ExpertBanks:
    """`banks` with dimensions of its fields reordered: field=(dimension, order)."""
    changes = {name: getattr(banks, name).index_select(*_index(how)) for name, how in orders.items()}
    return replace(banks, **changes)


def _index(how: tuple[int, list[int]]) -> tuple[int, torch.Tensor]:
    return how[0], torch.tensor(how[1])


def in_blocks(order: list[int], size: int) -> list[int]:
    """The order of single elements that moves whole blocks of `size`."""
    return [block * size + offset for block in order for offset in range(size)]


@every_case
@settings(max_examples=30)
@given(tokens=order(5))
def test_tokens_do_not_see_each_other(case, tokens):
    inputs = drawn(case)
    moved = Inputs(inputs.hidden_states[tokens], inputs.banks, inputs.topk_weights[tokens], inputs.topk_ids[tokens])
    assert torch.equal(output(moved, case), output(inputs, case)[tokens])


@every_case
@settings(max_examples=30)
@given(experts=order(4))
def test_the_numbers_of_the_experts_are_names(case, experts):
    inputs = drawn(case)
    fields = [name for name, tensor in vars(inputs.banks).items() if tensor is not None]
    banks = reordered(inputs.banks, **{name: (0, experts) for name in fields})
    ids = inputs.topk_ids.clone()
    for new, old in enumerate(experts):
        ids[inputs.topk_ids == old] = new
    assert torch.equal(output(replace(inputs, banks=banks, topk_ids=ids), case), output(inputs, case))


@every_case
@settings(max_examples=30)
@given(blocks=order(4))
def test_blocks_of_hidden_may_be_read_in_any_order(case, blocks):
    """K of gate_up, together with the activations; the rows of down stay where they are."""
    inputs = drawn(case)
    packed, scale = (2, in_blocks(blocks, 8)), (2, blocks)
    banks = reordered(inputs.banks, gate_up_packed=packed)
    banks = replace(banks, gate_up_scale=_bytes_reordered(inputs.banks.gate_up_scale, scale))
    x = inputs.hidden_states[:, in_blocks(blocks, 16)]
    assert torch.equal(output(replace(inputs, banks=banks, hidden_states=x), case), output(inputs, case))


@every_case
@settings(max_examples=30)
@given(blocks=order(5))
def test_blocks_of_intermediate_may_be_read_in_any_order(case, blocks):
    """The rows of gate and of up, and with them K of down."""
    inputs, banks = drawn(case), drawn(case).banks
    rows = in_blocks(blocks, 16)
    both = rows + [80 + row for row in rows]
    moved = reordered(banks, gate_up_packed=(1, both), gate_up_global=(1, both), down_packed=(2, in_blocks(blocks, 8)))
    moved = replace(
        moved,
        gate_up_scale=_bytes_reordered(banks.gate_up_scale, (1, both)),
        down_scale=_bytes_reordered(banks.down_scale, (2, blocks)),
    )
    assert torch.equal(output(replace(inputs, banks=moved), case), output(inputs, case))


def _bytes_reordered(scale: torch.Tensor, how: tuple[int, list[int]]) -> torch.Tensor:
    return scale.view(torch.uint8).index_select(*_index(how)).view(scale.dtype)
