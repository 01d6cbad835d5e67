"""Which layers are timed, and on how many tokens. Pure."""

from dataclasses import dataclass

from ..contract.case import TIERS
from ..contract.checks import choice, whole
from ..contract.kernel import ACTIVATIONS
from ..contract.shapes import CHECKPOINTS, LayerShape

DECODE = (1, 2, 4, 8, 16)
PREFILL = tuple(2**power for power in range(4, 16))  # 16 to 32768
TOKENS = tuple(sorted({*DECODE, *PREFILL}))

# Of the checkpoints whose configuration names another activation than silu.
_ACTIVATIONS = {"Gemma-4-26B-A4B": "gelu_tanh", "MiniMax-M3": "swigluoai"}


@dataclass(frozen=True)
class Layer:
    """An expert layer by name, with its model's own activation; swigluoai has alpha 1.702 and limit 7."""

    name: str
    shape: LayerShape
    activation: str = "silu"


LAYERS = {name: Layer(name, shape, _ACTIVATIONS.get(name, "silu")) for name, shape in CHECKPOINTS.items()}

# What a tier times where nothing is asked for: layers, and tokens of each. "smoke" has the smallest banks.
_TIERS: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "smoke": (("Qwen3.6-35B-A3B",), (1, 1024)),
    "ci": (("Qwen3.6-35B-A3B", "Gemma-4-26B-A4B", "GLM-4.7"), (1, 16, 1024, 8192)),
    "all": (tuple(LAYERS), TOKENS),
}


def layers_of(tier: str, asked: list[str]) -> list[Layer]:
    """The layers named by `asked`, or else those of `tier`. Raises ValueError for what names none."""
    choice("--tier", tier, TIERS)
    if asked == ["all"]:
        return list(LAYERS.values())
    return [layer_of(name) for name in asked or _TIERS[tier][0]]


def layer_of(text: str) -> Layer:
    """A checkpoint in any case, or a shape EXPERTSxTOP_KxHIDDENxINTERMEDIATE such as 8x2x128x64, "/gelu" behind it.

    Raises ValueError for anything else.
    """
    for name, layer in LAYERS.items():
        if name.lower() == text.lower():
            return layer
    sizes, _, activation = text.partition("/")
    numbers = sizes.split("x")
    if len(numbers) != 4 or not all(number.isdecimal() for number in numbers):
        known = f"{', '.join(LAYERS)}, all, or EXPERTSxTOP_KxHIDDENxINTERMEDIATE"
        raise ValueError(f"--shape is {text!r}, but should be one of {known}")
    if activation:
        choice("--shape's activation", activation, ACTIVATIONS)
    return Layer(text, LayerShape(*map(int, numbers)), activation or "silu")


def tokens_of(tier: str, asked: list[int]) -> list[int]:
    """`asked`, or else the tokens of `tier`. Raises TypeError or ValueError for a number below 1."""
    return [whole("--tokens", tokens, least=1) for tokens in asked or _TIERS[tier][1]]


def sample(rows: int, count: int) -> list[int]:
    """At most `count` of `rows` rows, spread evenly, the first and the last among them."""
    if rows <= count:
        return list(range(rows))
    if count == 1:
        return [rows - 1]
    return [place * (rows - 1) // (count - 1) for place in range(count)]
