"""Rows that blocks hold beside their routes, and which plans pay for more of them than they would have to."""

import math
from fractions import Fraction

import pytest

from nvfp4_suite.contract.gpus import CATALOG, PORTABLE, Gpu
from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape
from nvfp4_suite.kernels.padding import balanced_rows, expected_ratio, expected_rows, padded
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.tuning import (
    BLOCK_M_STEPS,
    GEFORCE_86_STEPS,
    GEFORCE_STEPS,
    PORTABLE_BLOCK_M_STEPS,
    RTX_PRO_STEPS,
    block_m_steps,
)
from nvfp4_suite.kernels.variants import DEFAULT, VARIANTS

H200 = Gpu("NVIDIA H200", (9, 0))
LAYER = LayerShape(128, 8, 2048, 512)
LIMIT = 1.25


@pytest.mark.fault("ROCm/vllm#1069")
@pytest.mark.parametrize("tokens", [64, 65, 128])
@pytest.mark.parametrize(("block_m", "rows"), [(16, 2048), (32, 4096), (64, 8192)])
def test_work_follows_blocks_and_not_routes(tokens, block_m, rows):
    """ROCm/vllm#1069: short prefill got 69 % slower with a larger block; balanced routing, 128 experts, top 8."""
    assert balanced_rows(LAYER, tokens, block_m) == rows


@pytest.mark.parametrize("shape", [LayerShape(5, 2, 64, 64), LayerShape(3, 1, 64, 64), LayerShape(7, 6, 64, 64)])
@pytest.mark.parametrize("tokens", [1, 2, 7, 40])
@pytest.mark.parametrize("block_m", [1, 4, 16])
def test_the_expectation_is_that_of_the_binomial_distribution(shape, tokens, block_m):
    """Here in exact fractions."""
    p = Fraction(shape.top_k, shape.experts)
    chances = [math.comb(tokens, n) * p**n * (1 - p) ** (tokens - n) for n in range(tokens + 1)]
    assert sum(chances) == 1
    wanted = shape.experts * sum(chance * -(-n // block_m) * block_m for n, chance in enumerate(chances))
    assert expected_rows(shape, tokens, block_m) == pytest.approx(float(wanted), rel=1e-12)


@pytest.mark.parametrize("shape", CHECKPOINTS.values(), ids=CHECKPOINTS)
@pytest.mark.parametrize("tokens", [1, 100, 4096, 32768])
def test_blocks_of_one_route_have_no_padding(shape, tokens):
    assert expected_ratio(shape, tokens, 1) == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("shape", [LayerShape(1, 1, 64, 64), LayerShape(4, 4, 64, 64), LayerShape(2, 3, 64, 64)])
def test_with_every_expert_in_every_token_nothing_is_random(shape):
    assert expected_rows(shape, 33, 16) == balanced_rows(shape, 33, 16)


def test_a_plan_has_the_ratio_of_its_block():
    shape = CHECKPOINTS["Qwen3.6-35B-A3B"]
    plan = plan_layer(H200, shape, 4096, kernel="prefill")
    assert plan.padded_ratio == expected_ratio(shape, 4096, plan.launch("list_blocks").constexpr("BLOCK_M"))
    assert 1.4 < plan.padded_ratio < 1.6  # 128 a expert, give or take 11, fill one block of 128 or two
    assert plan_layer(H200, shape, 1).padded_ratio == 1  # decode
    assert plan_layer(H200, shape, 0).padded_ratio == 1


@pytest.mark.parametrize(("routes", "rows"), [(0, 0), (1, 64), (64, 64), (65, 128), (129, 256), (256, 256), (300, 320)])
def test_the_last_block_has_the_least_width(routes, rows):
    assert padded(routes, (64, 128, 256)) == rows


def test_a_plan_with_widths_pads_less_than_its_block():
    shape = CHECKPOINTS["Qwen3.6-35B-A3B"]
    plan = plan_layer(H200, shape, 4096, kernel="prefill_w4a16_hopper")
    assert plan.padded_ratio == expected_ratio(shape, 4096, 64, 128, 192, 256) < expected_ratio(shape, 4096, 256)


# Where, of 1 to 512 tokens of ROCm/vllm#1069's layer, a plan pads over 1.25 times as much as the best block of its
# table would: from and to how many tokens, and the most. FreeToken#723's sweeps stand behind these thresholds: fewer,
# larger blocks decode each weight less often. A threshold that is changed without a sweep shows here.
LISTED = {
    BLOCK_M_STEPS: [(192, 282, 1.83), (384, 512, 2.01)],
    RTX_PRO_STEPS: [(256, 282, 1.39)],
    GEFORCE_STEPS: [(256, 282, 1.39)],
    GEFORCE_86_STEPS: [(256, 282, 1.39)],
    PORTABLE_BLOCK_M_STEPS: [(256, 282, 1.39)],
}
CARDS = {block_m_steps(gpu, VARIANTS[DEFAULT]): gpu for gpu in (*CATALOG, PORTABLE)}  # one of each table


def test_every_table_is_listed():
    assert CARDS.keys() == LISTED.keys()


@pytest.mark.fault("ROCm/vllm#1069")
@pytest.mark.parametrize(("steps", "gpu"), CARDS.items(), ids=lambda value: getattr(value, "name", None))
def test_plans_that_pad_much_more_than_another_block_would_are_listed(steps, gpu):
    def excess(tokens: int) -> float:
        ratios = [expected_ratio(LAYER, tokens, block_m) for _, block_m in steps]
        return plan_layer(gpu, LAYER, tokens).padded_ratio / min(ratios)

    found = {tokens: ratio for tokens in range(1, 513) if (ratio := excess(tokens)) > LIMIT}
    starts = [tokens for tokens in found if tokens - 1 not in found]
    ends = [tokens for tokens in found if tokens + 1 not in found]
    runs = zip(starts, ends, strict=True)
    listed = [(start, end, round(max(found[at] for at in range(start, end + 1)), 2)) for start, end in runs]
    assert listed == LISTED[steps]
