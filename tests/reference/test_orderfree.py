"""Drawn inputs give the same bits in every order of summation, and others do not."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from nvfp4_suite.cases.layers import RANDOM
from nvfp4_suite.contract.case import Case, Inputs, hashed, random_inputs, torch_dtype
from nvfp4_suite.reference import formats
from nvfp4_suite.reference.orderfree import (
    GEMM_LIMITS,
    OrderDependent,
    added,
    lowest_bit,
    product_grid,
    prove,
    require,
)

from .drawn import ATOMICS, VARIED, VARIED_W4A4, drawn, operands, output, routes
from .orders import differing_in_some_order, sum_in, sums_that_differ

SINGLE_PASS = (*VARIED, *VARIED_W4A4, *ATOMICS)


def gemm_terms(inputs: Inputs, case: Case) -> list[torch.Tensor]:
    """The addends [sums, K] of all sums in the two GEMMs, in float64."""
    banks, gate_up, down = inputs.banks, [], []
    weights = formats.dequantize_blocks(banks.gate_up_packed, banks.gate_up_scale)
    down_weights = formats.dequantize_blocks(banks.down_packed, banks.down_scale)
    for e, _, x, h in operands(inputs, case):
        gate_up.append((x[:, None] * weights[e]).flatten(0, 1))
        down.append((h[:, None] * down_weights[e]).flatten(0, 1))
    return [torch.cat(gate_up), torch.cat(down)]


def slot_terms(inputs: Inputs, case: Case) -> torch.Tensor:
    """The addends [T, H, top_k] of the sums over the slots."""
    return routes(inputs, case).transpose(1, 2)


@pytest.mark.parametrize("case", SINGLE_PASS)
def test_every_order_of_summation_gives_the_same_bits(case):
    inputs = drawn(case)
    assert sum(map(sums_that_differ, [*gemm_terms(inputs, case), slot_terms(inputs, case)])) == 0


def sum_aligned(terms: torch.Tensor, bits: int) -> torch.Tensor:
    """A matrix unit's sum: 16 products at a time are cut to so many `bits` below the largest, or the sum so far."""
    total = torch.zeros(terms.shape[:-1], dtype=terms.dtype)
    for part in terms.split(16, dim=-1):
        addends = torch.cat([part, total[..., None]], dim=-1)
        _, exponent = torch.frexp(addends.abs().amax(-1, keepdim=True))
        unit = torch.ldexp(torch.ones_like(part[..., :1]), exponent - bits)
        total = ((addends / unit).trunc() * unit).sum(-1)
    return total


@pytest.mark.parametrize("case", SINGLE_PASS)
def test_a_matrix_unit_that_aligns_coarsely_gives_the_same_sums(case):
    """As few bits as the limits of the proof leave it: 22 in W4A16, 20 in W4A4; with half of them the sums differ."""
    bits = round(torch.tensor(GEMM_LIMITS[case.format]).log2().item())
    terms = gemm_terms(drawn(case), case)
    assert all(torch.equal(sum_aligned(one, bits), one.sum(-1)) for one in terms)
    assert case.atomics or not all(torch.equal(sum_aligned(one, bits // 2), one.sum(-1)) for one in terms)


def test_random_inputs_do_depend_on_the_order_and_are_refused():
    case = RANDOM[0]
    inputs = random_inputs(case)
    assert sum(map(sums_that_differ, gemm_terms(inputs, case))) > 100
    with pytest.raises(OrderDependent):
        prove(inputs, case)


# Additions in d, as atomics make them


@pytest.mark.parametrize("case", ATOMICS)
def test_every_order_of_atomics_gives_the_layers_output(case):
    inputs, dtype = drawn(case), torch_dtype(case.dtype)
    terms = slot_terms(inputs, case)
    assert not differing_in_some_order(terms, dtype).any()
    assert torch.equal(sum_in(dtype, terms), output(inputs, case))
    assert torch.equal(output(inputs, case, rounding=f"{case.format}_atomic"), output(inputs, case))


@pytest.mark.parametrize("case", [replace(case, atomics=False) for case in ATOMICS if case.activation == "silu"])
def test_atomics_would_change_other_layers_and_they_are_refused(case):
    inputs = drawn(case)
    assert differing_in_some_order(slot_terms(inputs, case), torch_dtype(case.dtype)).any()
    with pytest.raises(OrderDependent, match="top_k sum in torch"):
        prove(inputs, replace(case, atomics=True))


@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 2**8), (torch.float16, 2**11)])
def test_the_limit_of_atomics_is_where_orders_begin_to_differ(dtype, most):
    """most - 1 is the last sum that is allowed; 2 + 2 + (most - 1), three grids above, rounds in one order and ties."""

    def slots(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)[None, :, None]

    allowed, broken = slots(most - 5, 2, 2), slots(most - 1, 2, 2)
    require(added(allowed, dtype, atomics=True), ["token 0"])
    assert not differing_in_some_order(allowed.transpose(1, 2), dtype).any()
    with pytest.raises(OrderDependent, match=f"top_k sum in {dtype}: magnitudes .* g = 1, sum = {most + 3}"):
        require(added(broken, dtype, atomics=True), ["token 0"])
    assert differing_in_some_order(broken.transpose(1, 2), dtype).all()
    require(added(broken, dtype, atomics=False), ["token 0"])  # in fp32 it is exact


# The grid


def test_lowest_bit_is_the_largest_power_of_two_that_divides():
    values = [1.0, -1.5, 0.75, 6.0, -448.0, 2.0**-24, 3 * 2.0**-149, 2.0**22 + 1, 1 + 2.0**-52, 2.0**1000, 1 / 3]
    found = lowest_bit(torch.tensor(values, dtype=torch.float64)).tolist()
    for value, power in zip(values, found, strict=True):
        quotient = Fraction(value) / Fraction(power)
        assert quotient.denominator == 1 and quotient.numerator % 2, (value, power)
    assert lowest_bit(torch.tensor([0.0, -0.0], dtype=torch.float64)).isinf().all()
    assert lowest_bit(torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=torch.float64)).isnan().all()


def test_the_grid_of_a_sum_divides_all_its_products_and_no_larger_one_does():
    x, weight = (hashed(name, 6, 8).double() % 24 * 2.0 ** (hashed(f"{name}2", 6, 8) % 9) for name in "xw")
    x[0], weight[0, :4], weight[1, 3] = 0, 0, torch.nan
    grid = product_grid(x, weight)
    products = x[:, None] * weight
    assert grid[0].isinf()[[0, 2, 3, 4, 5]].all() and grid[:, 1].isnan().all()
    expected = lowest_bit(products).amin(-1)
    assert torch.equal(grid.nan_to_num(), expected.nan_to_num())
