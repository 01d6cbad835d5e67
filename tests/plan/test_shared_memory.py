"""No plan of any card needs more shared memory than that card has.

Seen in NVIDIA/TransformerEngine#3062: tiles and stages made for data-centre cards, which compile for all others too.
The compile gates ask the compiler the same of every launch (tests/compile).
"""

from itertools import product

import pytest

from nvfp4_suite.contract.gpus import CATALOG, PORTABLE, Gpu, architecture
from nvfp4_suite.contract.kernel import DTYPES
from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape
from nvfp4_suite.kernels.launch import Launch
from nvfp4_suite.kernels.linear_plan import SPLITS, plan_linear
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.tiles import Tile, shared_memory
from nvfp4_suite.kernels.variants import VARIANTS, Variant

LIMITS = {(8, 0): 166_912, (8, 7): 166_912, (8, 6): 101_376, (8, 9): 101_376, (12, 0): 101_376, (12, 1): 101_376}
LIMITS |= {(9, 0): 232_448, (10, 0): 232_448, (10, 3): 232_448, (11, 0): 232_448, None: 101_376}
CARDS = [*CATALOG, PORTABLE, Gpu("from the future", (13, 0))]
every_card = pytest.mark.parametrize("gpu", CARDS, ids=lambda gpu: gpu.name)

SHAPES = (*CHECKPOINTS.values(), LayerShape(4, 2, 272, 80), LayerShape(1, 1, 16, 16), LayerShape(8, 2, 96, 128))
TOKENS = (1, 2, 40, 100, 300, 700, 1500, 4096, 32768)
TOO_LARGE = Tile(128, block_n=256, block_kb=128, num_stages=3)  # the report's 128 x 256, 256 of K, 3 stages
BETWEEN = Tile(256, block_kb=64, num_warps=8)  # 139,776 bytes with mma.sync, about 204,800 with the others


def _limit(gpu: Gpu) -> int:
    return LIMITS.get(gpu.capability, LIMITS[None])


def _needed(gemm: Launch, gpu: Gpu, variant: Variant) -> int:
    sizes = (gemm.constexpr(name) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_KB"))
    return shared_memory(Tile(*sizes, gemm.num_warps, gemm.num_stages), architecture(gpu), variant)


@pytest.mark.fault("NVIDIA/TransformerEngine#3062")
@every_card
@pytest.mark.parametrize("kernel", VARIANTS)
def test_no_layer_needs_more_than_its_card_has(kernel: str, gpu: Gpu):
    for shape, tokens in product(SHAPES, TOKENS):
        plan = plan_layer(gpu, shape, tokens, kernel=kernel)
        for stage, k in (("gate_up", shape.hidden), ("down", shape.intermediate)):
            gemm = plan.launch(stage)
            variant = VARIANTS[kernel].for_gemm(k, gemm.constexpr("BLOCK_KB"))
            assert _needed(gemm, gpu, variant) <= _limit(gpu), plan.reason


@pytest.mark.fault("NVIDIA/TransformerEngine#3062")
@every_card
def test_no_linear_layer_needs_more_than_its_card_has(gpu: Gpu):
    sizes = product((3, 16, 64, 4096), (272, 640, 4096), DTYPES, SPLITS)
    plans = [plan_linear(gpu, m, 4096, k, dtype=dtype, split_k=split) for m, k, dtype, split in sizes]
    gemms = {plan.launch("gemm") for plan in plans} - {None}
    assert gemms and max(_needed(gemm, gpu, Variant()) for gemm in gemms) <= _limit(gpu)


@pytest.mark.fault("NVIDIA/TransformerEngine#3062")
@every_card
def test_only_gemms_can_need_any(gpu: Gpu):
    """What has no dot has no stages: whatever a loop keeps is in registers."""
    layer = (plan_layer(gpu, SHAPES[0], 100, kernel=kernel, weight_on_input=True) for kernel in ("prefill", "decode"))
    linear = (plan_linear(gpu, m, 4096, 4096, split_k=split) for m, split in ((1, "auto"), (64, 2)))
    others = [one for plan in (*layer, *linear) for one in plan.launches if not one.instruction]
    assert len(others) > 10 and {one.num_stages for one in others} == {1}


@pytest.mark.fault("NVIDIA/TransformerEngine#3062")
@every_card
@pytest.mark.parametrize("kernel", VARIANTS)
def test_a_tile_over_every_limit_is_refused(kernel: str, gpu: Gpu):
    """Whatever a variant makes of it, and for two dots on tcgen05 also for another reason."""
    with pytest.raises(ValueError, match=r"override('s block_m is 128| needs .* bytes of shared memory), but"):
        plan_layer(gpu, SHAPES[0], 64, kernel=kernel, override=TOO_LARGE)


@pytest.mark.fault("NVIDIA/TransformerEngine#3062")
@every_card
def test_a_tile_between_the_limits_is_refused_where_it_does_not_fit(gpu: Gpu):
    """It compiles for all of them, see tests/compile/test_must_fail.py."""
    if _limit(gpu) > 101_376:
        assert plan_layer(gpu, SHAPES[0], 64, override=BETWEEN).launch("down").constexpr("BLOCK_M") == 256
    else:
        with pytest.raises(ValueError, match=r"override needs 1[0-9]{2},[0-9]{3} bytes of shared memory.* has 101,376"):
            plan_layer(gpu, SHAPES[0], 64, override=BETWEEN)
