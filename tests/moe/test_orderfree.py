"""Whole layers whose sums have one right answer: bit for bit, by every kernel, every tile and every card's plan."""

import pytest

from nvfp4_suite.cases.layers import ORDERFREE
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.gpus import CATALOG, PORTABLE, Gpu, architecture
from nvfp4_suite.contract.kernel import Kernel
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.registry import KERNELS
from nvfp4_suite.kernels.tuning import BLOCK_M_STEPS, Tile
from nvfp4_suite.reference import judge

from ..engine import runnable
from .subject import expected_of, inputs_of, plan_options, run_kernel, run_plan

TILES = [Tile(block_m) for _, block_m in BLOCK_M_STEPS] + [Tile(32, block_n=32, block_kb=16), Tile(64, 128, 64, 8, 2)]
# One card for each set of facts that a plan depends on.
CARDS = list({architecture(gpu): gpu for gpu in (*CATALOG, PORTABLE)}.values())
FEW = [*ORDERFREE[1:9:3], ORDERFREE[8]]  # ragged K and multiples of a step, both dtypes


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
@pytest.mark.parametrize("case", runnable(ORDERFREE))
def test_kernel_equals_the_reference(case: Case, kernel: Kernel, device):
    actual = run_kernel(kernel, inputs_of(case), device, **case.options)
    judge.bitwise(actual, expected_of(case, kernel.promise.rounding), case=case.id, kernel=kernel.name)


@pytest.mark.parametrize("tile", TILES, ids=lambda t: f"m{t.block_m}n{t.block_n}kb{t.block_kb}")
@pytest.mark.parametrize("case", FEW)
def test_every_tile_gives_the_same_bits(case: Case, tile: Tile, device):
    plan = plan_layer(Gpu("NVIDIA H200", (9, 0)), case.shape, case.tokens, override=tile, **plan_options(case))
    judge.bitwise(run_plan(plan, case, device), expected_of(case, "w4a16"), case=case.id, tile=tile)


@pytest.mark.parametrize("gpu", CARDS, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("case", FEW[:2])
def test_every_cards_plan_gives_the_same_bits(case: Case, gpu: Gpu, device):
    plan = plan_layer(gpu, case.shape, case.tokens, **plan_options(case))
    judge.bitwise(run_plan(plan, case, device), expected_of(case, "w4a16"), case=case.id, gpu=gpu.name)
