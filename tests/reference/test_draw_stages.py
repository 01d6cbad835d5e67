"""Inputs of single stages: exact in any order, and as rich as they say."""

from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from nvfp4_suite.cases.stages import ACTIVATED, GEMMS, SUMS, ActivationCase, GemmCase, SumCase
from nvfp4_suite.contract.case import torch_dtype
from nvfp4_suite.contract.kernel import ACTIVATIONS, DTYPES, FORMATS
from nvfp4_suite.reference import formats, moe
from nvfp4_suite.reference.activations import Activation
from nvfp4_suite.reference.draws.stages import Gemm, draw_activation, draw_gemm, draw_routes
from nvfp4_suite.reference.orderfree import OrderDependent, require
from nvfp4_suite.reference.rounding import rounding_form

from .orders import differing_in_some_order, sums_that_differ

every_gemm = pytest.mark.parametrize("case", GEMMS, ids=lambda case: case.id)
KEYS = [(case, key) for case in GEMMS for key in case.keys]


def drawn(case: GemmCase) -> Gemm:
    return drawn_for(case, case.keys[0])


@lru_cache(maxsize=2)
def drawn_for(case: GemmCase, key: str) -> Gemm:
    return draw_gemm(key, case.rows, case.n, case.k, case.dtype, case.format)


def test_the_tables_cover_formats_dtypes_activations_and_atomics():
    assert {(case.format, case.dtype) for case in GEMMS} == {(name, dtype) for name in FORMATS for dtype in DTYPES}
    assert {(case.activation, case.dtype) for case in ACTIVATED} == {(a, d) for a in ACTIVATIONS for d in DTYPES}
    assert {(case.atomics, case.dtype) for case in SUMS} == {(a, d) for a in (False, True) for d in DTYPES}
    ids = [case.id for case in (*GEMMS, *ACTIVATED, *SUMS)]
    assert len(set(ids)) == len(ids)


@every_gemm
def test_every_order_of_a_gemm_gives_the_same_bits(case):
    x, weight, _ = drawn(case).operands()
    assert sums_that_differ((x[:, None] * weight).flatten(0, 1)) == 0


@every_gemm
def test_a_gemm_has_all_codes_and_scales_of_many_binades(case):
    weights = drawn(case).weights
    scale = weights.scale[0]
    assert set(formats.unpack(weights.packed).unique().tolist()) == set(range(16))
    assert len((scale >> 3).unique()) >= 12 and len((scale & 7).unique()) == 8
    assert (weights.global_scale.bfloat16().float() != weights.global_scale).double().mean() > 0.9
    if case.k in (48, 64) and case.dtype == "bf16":
        assert ((scale >> 3).amax(1) - (scale >> 3).amin(1)).double().mean() >= 1  # binades in one row


@every_gemm
def test_the_rows_of_a_gemm_are_dense_or_sparse_and_carry_full_mantissas(case):
    gemm = drawn(case)
    x, _, _ = gemm.operands()
    used = (x != 0).double().mean(1)
    assert (used[:2] > 0.7).all() and (used[3::4] <= 1 / case.k).all() and (x[:3, -16:] != 0).any(1).all()
    if case.format == "w4a4":
        assert set(formats.unpack(gemm.x_packed).unique().tolist()) == set(range(16))
        assert case.k < 48 or len(gemm.x_scale.unique()) >= 15
        assert gemm.input_scale != gemm.input_scale.bfloat16()
    else:
        for row in (x[0], x[2]):  # dense, and a quarter of that
            mantissa, _ = torch.frexp(row[row != 0])
            values = len(mantissa) * 9 // 8  # and those that came out as 0
            bits = min({"bf16": 8, "fp16": 11}[case.dtype], 17 - values.bit_length())
            last_bit = torch.ldexp(mantissa, torch.tensor(bits)) % 2
            assert (last_bit != 0).double().mean() > 0.1  # on average 1/4
        assert (gemm.weights.weights() == 0).double().mean() < 1 / 4


def other_orders(gemm: Gemm, sums: torch.Tensor, w: torch.Tensor) -> dict[str, torch.Tensor]:
    """Products in fp32 that are not ((sum * alpha) * w), before the rounding to d."""
    of_weight, alpha = gemm.weights.global_scale, gemm.weights.alpha(gemm.input_scale).float()
    orders = {"(sum * w) * alpha": sums * w * alpha, "sum * (alpha * w)": sums * (alpha * w)}
    if gemm.format == "w4a4":
        orders["((sum * input scale) * global) * w"] = sums * gemm.input_scale * of_weight * w
    return orders


@pytest.mark.parametrize(("case", "key"), KEYS, ids=[key for _, key in KEYS])
def test_every_order_of_the_products_shows(case, key):
    """In most rows, although orders differ by no more than the last bits of fp32."""
    gemm = drawn_for(case, key)
    x, weight, alpha = gemm.operands()
    sums, w = (x @ weight.T).float(), gemm.topk_weights[:, None]
    assert ((w >= 1 / 2) & (w < 1)).all()
    right = sums * alpha.float() * w
    form = rounding_form(case.format, gemm.dtype)
    assert torch.equal(right.to(gemm.dtype).double(), moe.down(x, weight, alpha, gemm.topk_weights.double(), form))
    for name, other in other_orders(gemm, sums, w).items():
        assert torch.allclose(other, right, rtol=2.0**-21, atol=0), name
        shows = (other.to(gemm.dtype) != right.to(gemm.dtype)).any(1)
        assert shows.double().mean() > 3 / 4, name


@pytest.mark.parametrize("case", [case for case in GEMMS if case.k > 16], ids=lambda case: case.id)
def test_a_gemm_with_a_finer_block_is_refused(case):
    gemm = drawn(case)
    first = torch.arange(case.k // 16) == 0
    scale = torch.where(first, 0x01, 0x7E).to(torch.uint8).expand_as(gemm.weights.scale)
    packed = torch.full_like(gemm.weights.packed, 0x71)  # 0.5 and 6.0
    finer = replace(gemm, weights=replace(gemm.weights, packed=packed, scale=scale))
    with pytest.raises(OrderDependent, match=r"gemm sum: magnitudes too large for their grid at row \d"):
        require(finer.conditions(), [f"row {row}" for row in range(case.rows)])


@pytest.mark.parametrize("case", ACTIVATED, ids=lambda case: case.id)
def test_activation_inputs_saturate_and_hold_most_exponents(case: ActivationCase):
    form = rounding_form("w4a16", torch_dtype(case.dtype))
    activation = Activation.of_options(case.activation, 1.702, case.limit, form)
    gate, up = draw_activation(case.id, case.rows, case.columns, case.dtype, activation).double().chunk(2, dim=1)
    clamped, _ = activation.clamp(gate, up)
    f = activation.f(clamped).float().double()
    assert ((f == clamped) | (f == 0)).all()
    assert (f == clamped)[gate > 0].all() and (f == 0)[gate < 0].all()
    exponents = {"bf16": 100, "fp16": 25}[case.dtype]
    assert len(torch.frexp(up[gate > 0])[1].unique()) > exponents
    for share in (gate > 0, gate < 0):
        assert share.double().mean() > 0.08
    assert moe.activate(gate, up, activation, form).isfinite().all()


@pytest.mark.parametrize("case", SUMS, ids=lambda case: case.id)
def test_every_order_of_a_sum_gives_the_same_bits(case: SumCase):
    routes = draw_routes(case.id, *case)
    terms = routes.double().transpose(1, 2)
    assert sums_that_differ(terms) == 0
    assert (routes != 0).all() and len(routes.unique()) > min(routes.numel() / 3, 200)
    if case.atomics:
        assert not differing_in_some_order(terms, routes.dtype).any()
    elif case.top_k > 2:
        assert differing_in_some_order(terms, routes.dtype).any()
