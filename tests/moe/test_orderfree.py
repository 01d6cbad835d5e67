"""Whole layers whose sums have one right answer: bit for bit, by every kernel, every tile and every card's plan."""

import math

import pytest

from nvfp4_suite.cases.layers import ORDERFREE
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.gpus import CATALOG, PORTABLE, Gpu
from nvfp4_suite.contract.kernel import Kernel
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.plan import LayerPlan, plan_layer
from nvfp4_suite.kernels.tiles import Tile
from nvfp4_suite.kernels.tuning import BLOCK_M_STEPS, tuning_of
from nvfp4_suite.reference import judge

from ..engine import can_run_here, runnable
from .subject import context_of, expected_of, inputs_of, plan_options, run_kernel, run_plan, taken

TILES = [Tile(block_m) for _, block_m in BLOCK_M_STEPS] + [Tile(32, block_n=32, block_kb=16), Tile(64, 128, 64, 8, 2)]
RAGGED = Case(LayerShape(4, 2, 48, 80), 5, dtype="fp16")
EVEN = Case(LayerShape(3, 3, 128, 32), 4)  # K is a multiple of 32 in both GEMMs


def _plans(case: Case) -> list[LayerPlan]:
    """Every plan that some card chooses for the case's shape, whatever the number of tokens; equal ones once."""
    cards = [gpu for gpu in (*CATALOG, PORTABLE) if can_run_here(gpu)]
    thresholds = {2, *(least for gpu in cards for least, _ in tuning_of(gpu).steps)}  # below 2 are decode plans
    crowds = [max(1, math.ceil(least * case.shape.experts / case.shape.top_k)) for least in sorted(thresholds)]
    plans = [plan_layer(gpu, case.shape, tokens, **plan_options(case)) for gpu in cards for tokens in crowds]
    return list({plan.launches: plan for plan in plans}.values())


PLANS = [(case, plan) for case in (RAGGED, EVEN) for plan in _plans(case)]


@pytest.mark.due
@pytest.mark.parametrize(("case", "kernel"), taken(runnable(ORDERFREE)))
def test_kernel_equals_the_reference(case: Case, kernel: Kernel, device):
    actual = run_kernel(kernel, inputs_of(case), device, **case.options)
    judge.bitwise(actual, expected_of(case, kernel.promise.orderfree_rounding), **context_of(case), kernel=kernel.name)


@pytest.mark.parametrize("tile", TILES, ids=lambda t: f"m{t.block_m}n{t.block_n}kb{t.block_kb}")
@pytest.mark.parametrize("case", [RAGGED, EVEN])
def test_every_tile_gives_the_same_bits(case: Case, tile: Tile, device):
    plan = plan_layer(Gpu("NVIDIA H200", (9, 0)), case.shape, case.tokens, override=tile, **plan_options(case))
    judge.bitwise(run_plan(plan, case, device), expected_of(case, "w4a16"), **context_of(case), tile=tile)


@pytest.mark.parametrize(("case", "plan"), PLANS, ids=[f"{case.id}-{plan.reason}" for case, plan in PLANS])
def test_every_cards_plans_give_the_same_bits(case: Case, plan: LayerPlan, device):
    judge.bitwise(run_plan(plan, case, device), expected_of(case, "w4a16"), **context_of(case), plan=plan.reason)
