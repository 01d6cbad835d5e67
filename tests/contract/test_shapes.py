"""LayerShape, and the shapes of published checkpoints."""

import pytest

from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape


def test_checkpoints():
    """The table is typed by hand; this is the other hand."""
    assert {name: (s.experts, s.top_k, s.hidden, s.intermediate) for name, s in CHECKPOINTS.items()} == {
        "Qwen3.6-35B-A3B": (256, 8, 2048, 512),
        "Qwen3.5-122B-A10B": (256, 8, 3072, 1024),
        "Qwen3.8-Flash": (512, 10, 2560, 640),
        "Gemma-4-26B-A4B": (128, 8, 2816, 704),
        "MiniMax-M2.5": (256, 8, 3072, 1536),
        "GLM-4.7": (160, 8, 5120, 1536),
        "GLM-5.2": (256, 8, 6144, 2048),
        "GLM-5.3-Flash": (288, 8, 4096, 2048),
        "MiniMax-M3": (128, 4, 6144, 3072),
    }


@pytest.mark.parametrize("name", ("experts", "top_k", "hidden", "intermediate"))
@pytest.mark.parametrize("value", (0, -16))
def test_sizes_are_positive(name, value):
    fields = {"experts": 4, "top_k": 2, "hidden": 32, "intermediate": 16} | {name: value}
    with pytest.raises(ValueError, match=f"{name} is {value}, but should be at least 1"):
        LayerShape(**fields)


@pytest.mark.parametrize("name", ("hidden", "intermediate"))
@pytest.mark.parametrize("value", (8, 17, 40))
def test_sizes_are_whole_blocks(name, value):
    fields = {"experts": 4, "top_k": 2, "hidden": 32, "intermediate": 16} | {name: value}
    with pytest.raises(ValueError, match=f"{name} is {value}, but should be a multiple of 16"):
        LayerShape(**fields)
