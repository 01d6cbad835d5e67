"""Shapes of expert layers in published checkpoints. Pure: neither torch nor triton."""

from dataclasses import dataclass

from .checks import whole


@dataclass(frozen=True)
class LayerShape:
    """One expert layer: `hidden` is the model's hidden_size, `intermediate` its moe_intermediate_size.

    Raises TypeError for a size that is no int, ValueError for one that cannot be; both name it.
    """

    experts: int
    top_k: int
    hidden: int
    intermediate: int

    def __post_init__(self) -> None:
        for name in ("experts", "top_k", "hidden", "intermediate"):
            whole(name, getattr(self, name), least=1)
        for name in ("hidden", "intermediate"):
            if getattr(self, name) % 16:
                raise ValueError(f"{name} is {getattr(self, name)}, but should be a multiple of 16 (one block scale)")


# The first six and their sources are the shapes of FlashML-org/FreeToken#723; the others are public configurations.
CHECKPOINTS: dict[str, LayerShape] = {
    "Qwen3.6-35B-A3B": LayerShape(256, 8, 2048, 512),
    "Qwen3.5-122B-A10B": LayerShape(256, 8, 3072, 1024),
    "Qwen3.8-Flash": LayerShape(512, 10, 2560, 640),
    "Gemma-4-26B-A4B": LayerShape(128, 8, 2816, 704),
    "MiniMax-M2.5": LayerShape(256, 8, 3072, 1536),
    "GLM-4.7": LayerShape(160, 8, 5120, 1536),
    "GLM-5.2": LayerShape(256, 8, 6144, 2048),
    "GLM-5.3-Flash": LayerShape(288, 8, 4096, 2048),
    "MiniMax-M3": LayerShape(128, 4, 6144, 3072),
}
