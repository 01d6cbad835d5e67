"""Where the W4A16 kernel for sm_90 is planned, with which stages, and why not elsewhere."""

import pytest

from nvfp4_suite.cases.layers import ALL
from nvfp4_suite.contract.case import Case, topk_ids
from nvfp4_suite.contract.gpu_names import DATA_CENTER, speed_class
from nvfp4_suite.contract.gpus import CATALOG, Gpu
from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape
from nvfp4_suite.kernels import hopper
from nvfp4_suite.kernels.plan import LayerPlan, plan_layer
from nvfp4_suite.kernels.releases import NO_ASSEMBLER, TRITONS
from nvfp4_suite.kernels.tiles import Tile

H200 = Gpu("NVIDIA H200", (9, 0))
QWEN = CHECKPOINTS["Qwen3.6-35B-A3B"]
TILES = hopper.SMALL, hopper.LARGE
GEMMS = {"gate_up": hopper.GATE_UP, "down": hopper.DOWN}


def is_planned(plan: LayerPlan) -> bool:
    """Both GEMMs or none; gate_up has the activation in it."""
    found = {stage: plan.launch(stage).kernel == kernel for stage, kernel in GEMMS.items()}
    assert len(set(found.values())) == 1 and found["down"] == (plan.launch("activation") is None)
    return found["down"]


@pytest.mark.parametrize("name", hopper.NAMES)
@pytest.mark.parametrize("shape", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_every_published_layer_has_it(shape, name):
    for tokens in (1, 512, 32768):
        plan = plan_layer(H200, shape, tokens, kernel=name)
        assert is_planned(plan) and plan.kernel == name
        assert [hopper.wants_prepared(plan.launch(stage)) for stage in GEMMS] == [name == hopper.PREPARED] * 2
        for stage, k in (("gate_up", shape.hidden), ("down", shape.intermediate)):
            stages, rest = (plan.launch(stage).constexpr(name) for name in ("STAGES", "REST"))
            assert k // 64 % stages == rest <= stages - 2 <= k // 64


@pytest.mark.parametrize(
    ("gpu", "shape", "triton", "why"),
    [
        (Gpu("NVIDIA B200", (10, 0)), QWEN, "3.8.0", "it needs sm_90"),
        (H200, QWEN, "3.7.1", "it needs Triton 3.8.0 or 3.9.0"),
        (H200, LayerShape(8, 2, 2048 + 64, 512), "3.8.0", "hidden 2112 is no multiple of 128, or less than 256"),
        (H200, LayerShape(8, 2, 2048, 512 + 16), "3.8.0", "intermediate 528 is no multiple of 64, or less than 256"),
        (H200, LayerShape(8, 2, 128, 512), "3.8.0", "hidden 128 is no multiple of 128, or less than 256"),
        (H200, LayerShape(8, 2, 2048, 59 * 64), "3.8.0", "intermediate 3776 leaves too many steps behind the loop"),
    ],
)
def test_where_it_cannot_be_the_default_runs_and_the_reason_says_why(gpu, shape, triton, why):
    for name in hopper.NAMES:
        plan = plan_layer(gpu, shape, 4096, triton=triton, kernel=name)
        assert plan.kernel == name and plan.reason.endswith(f", not for sm_90 ({why})")
        assert plan.launches == plan_layer(gpu, shape, 4096, triton=triton, kernel="prefill").launches


@pytest.mark.parametrize("gpu", CATALOG, ids=lambda gpu: gpu.name)
def test_auto_takes_it_from_two_tokens_per_expert_on(gpu):
    """Qwen3.6 has 32 experts for each of a token's routes."""
    for triton in set(TRITONS) - set(NO_ASSEMBLER.get(gpu.capability, ())):
        below, at = (plan_layer(gpu, QWEN, tokens, triton=triton).kernel for tokens in (63, 64))
        assert below != hopper.NAME
        able = gpu.capability == (9, 0) and triton in hopper.TRITONS
        assert (at == hopper.NAME) == (able and speed_class(gpu) == DATA_CENTER)


@pytest.mark.parametrize("name", hopper.NAMES)
def test_it_has_tiles_of_its_own(name):
    with pytest.raises(ValueError, match=f"override is .*, but should be None for {name}"):
        plan_layer(H200, QWEN, 64, kernel=name, override=Tile(64))


@pytest.mark.parametrize("name", hopper.NAMES)
@pytest.mark.parametrize(("more", "block_m"), [(-1, 64), (0, 256)])
def test_few_tokens_per_expert_have_small_tiles(name, more, block_m):
    plan = plan_layer(H200, QWEN, hopper.SMALL_BELOW[name] * 32 + more, kernel=name)
    assert {plan.launch(stage).constexpr("BLOCK_M") for stage in ("list_blocks", *GEMMS)} == {block_m}


def test_a_tile_is_the_least_of_its_widths_that_holds_its_routes():
    for tile in TILES:
        widths = hopper.widths(tile.block_m)
        assert list(widths) == sorted(widths) and widths[-1] == tile.block_m
        for width in widths:
            parts = hopper.parts(width)
            assert sum(parts) == width and all(part.bit_count() == 1 for part in parts)


def test_a_position_is_that_of_one_k():
    order = [hopper.k_of_position(position) for position in range(128)]
    assert sorted(order) == list(range(128)) and sorted(order[:64]) == list(range(64))
    # In the four instructions, 16 of K each, thread t has positions 2 t, 2 t + 1, 2 t + 8 and 2 t + 9.
    for t in range(4):
        mine = [order[16 * s + 2 * t + place] for s in range(4) for place in (0, 1, 8, 9)]
        assert sorted(mine) == list(range(16 * t, 16 * t + 16))


def loops(shape: LayerShape, tokens: int) -> dict[str, tuple[int, int]]:
    """(STAGES, REST) of each GEMM over K; empty where the default kernel stands in."""
    plan = plan_layer(H200, shape, tokens, kernel=hopper.NAME)
    if hopper.lacks(H200, shape, "3.8.0"):
        return {}
    return {stage: tuple(map(plan.launch(stage).constexpr, ("STAGES", "REST"))) for stage in GEMMS}


CASES = [case for case in ALL if case.format == "w4a16"]


def test_some_case_runs_every_loop_that_a_shape_can_have():
    """Of more K than there are before the numbers of steps repeat themselves, in either tile."""
    sizes = range(hopper.LEAST_K, 200 * hopper.K_UNIT, hopper.K_UNIT)
    shapes = [LayerShape(1, 1, *both) for k in sizes for both in ((k, hopper.LEAST_K), (hopper.LEAST_K, k))]
    crowds = (1, *hopper.SMALL_BELOW.values())
    possible = {loop for shape in shapes for tokens in crowds for loop in loops(shape, tokens).items()}
    assert {stage for stage, _ in possible} == set(GEMMS)
    assert possible == {loop for case in CASES for loop in loops(case.shape, case.tokens).items()}


@pytest.mark.parametrize("name", hopper.NAMES)
def test_some_case_runs_every_width_of_every_tile(name):
    found = {size for case in CASES for size in tiles_of(case, name)}
    assert found == {(tile.block_m, width) for tile in TILES for width in hopper.widths(tile.block_m)}


def tiles_of(case: Case, name: str) -> set[tuple[int, int]]:
    """(BLOCK_M, width) of the tiles of a case, whose experts' last blocks are not full; none where it has no own."""
    if hopper.lacks(H200, case.shape, "3.8.0"):
        return set()
    block_m = plan_layer(H200, case.shape, case.tokens, kernel=name).launch("down").constexpr("BLOCK_M")
    ids = topk_ids(case)
    counts = ids[(ids >= 0) & (ids < case.shape.experts)].bincount().tolist()
    rows = [min(count - first, block_m) for count in counts for first in range(0, count, block_m)]
    return {(block_m, next(width for width in hopper.widths(block_m) if width >= some)) for some in rows}


def test_a_smoke_case_goes_twice_round_the_loop():
    """Sanitizers see these alone."""
    smoke = [case for case in CASES if case.tier == "smoke" and loops(case.shape, case.tokens)]
    turns = [case.shape.intermediate // hopper.K_UNIT // loops(case.shape, case.tokens)["down"][0] for case in smoke]
    assert max(turns) >= 2
