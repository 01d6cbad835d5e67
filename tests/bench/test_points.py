"""Which layers and tokens are timed, and which rows are judged."""

from itertools import pairwise

import pytest

from nvfp4_suite.bench import points
from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape


def test_every_checkpoint_is_a_layer_with_its_own_activation():
    assert {name: layer.shape for name, layer in points.LAYERS.items()} == CHECKPOINTS
    other = {name: layer.activation for name, layer in points.LAYERS.items() if layer.activation != "silu"}
    assert other == {"Gemma-4-26B-A4B": "gelu_tanh", "MiniMax-M3": "swigluoai"}


def test_all_is_every_layer_from_one_token_to_32768():
    assert points.layers_of("all", []) == points.layers_of("ci", ["all"]) == list(points.LAYERS.values())
    assert points.tokens_of("all", []) == [2**power for power in range(16)]


def test_a_tier_has_no_layer_or_token_that_the_next_lacks():
    for tier, more in (("smoke", "ci"), ("ci", "all")):
        assert set(points.layers_of(tier, [])) < set(points.layers_of(more, []))
        assert set(points.tokens_of(tier, [])) < set(points.tokens_of(more, []))


def test_what_is_asked_for_is_what_is_timed():
    layers = points.layers_of("all", ["glm-4.7", "8x2x128x64/gelu"])
    assert layers == [points.LAYERS["GLM-4.7"], points.Layer("8x2x128x64/gelu", LayerShape(8, 2, 128, 64), "gelu")]
    assert points.tokens_of("smoke", [7, 3]) == [7, 3]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("GLM-9", "--shape is 'GLM-9', but should be one of Qwen3.6-35B-A3B"),
        ("8x2x128", "--shape is '8x2x128'"),
        ("8x2x128x65", "intermediate is 65, but should be a multiple of 16"),
        ("8x2x128x64/tanh", "--shape's activation is 'tanh', but should be one of silu"),
    ],
)
def test_a_shape_that_is_none(asked, message):
    with pytest.raises(ValueError, match=message):
        points.layers_of("all", [asked])


def test_no_tokens_are_none_to_time():
    with pytest.raises(ValueError, match="--tokens is 0, but should be at least 1"):
        points.tokens_of("all", [8, 0])


@pytest.mark.parametrize(("rows", "count"), [(1, 16), (16, 16), (17, 16), (32768, 16), (100, 2), (5, 1)])
def test_a_sample_is_spread_and_has_the_last_row(rows, count):
    found = points.sample(rows, count)
    assert len(set(found)) == len(found) == min(rows, count)
    assert found == sorted(found) and found[-1] == rows - 1
    steps = {after - before for before, after in pairwise(found)}
    assert not steps or max(steps) - min(steps) <= 1
    assert count == 1 or found[0] == 0
