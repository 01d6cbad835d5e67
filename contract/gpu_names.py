"""Speed classes: what a GPU's name tells about how fast it multiplies against how fast it decodes. Pure.

A prefill GEMM decodes each weight tile once per block of tokens, on the fp32 units, and multiplies the block's padding
too. So the best block follows rho: the throughput of bf16 matrix instructions with fp32 sums over that of fp32
arithmetic, per SM and clock (FlashML-org/FreeToken#723). Capability alone says what is possible; a name only chooses.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from .gpus import Gpu


@dataclass(frozen=True)
class SpeedClass:
    """Cards that have one `rho`, or nearly. `name` is short, for reasons and tables."""

    name: str
    rho: float


DATA_CENTER = SpeedClass("data center", 16)  # and more: Blackwell's data center cards have 32
H20 = SpeedClass("H20", 3.4)
ORIN = SpeedClass("Orin", 8)
RTX_PRO = SpeedClass("RTX PRO", 4)
GEFORCE = SpeedClass("GeForce", 2)
CLASSES = (DATA_CENTER, H20, ORIN, RTX_PRO, GEFORCE)

SAFE = RTX_PRO  # of a name that nobody knows; FreeToken#723: "An unknown name logs a warning and uses 4"

# vGPU managers add letters for memory and form to a data center chip: "GRID A100DX-80C", "NVIDIA H100XM-80C".
_VGPU = "[DLMX]{0,2}"

# The first pattern that is found in a name decides. Drivers write one card in several ways: "NVIDIA GeForce RTX 4090"
# or "NVIDIA RTX 4090", "GRID A100X-40C" for a share of a card (vGPU) as "NVIDIA RTX6000-Ada-48Q", "... MIG 1g.5gb".
# FreeToken#723 states rho of GeForce RTX 30/40/50, RTX A, RTX Ada, RTX PRO, A10, A40, L4, L40S, A100, H100 and H20. The
# other rows are ours, from data sheets: dense bf16 TFLOPS over fp32 TFLOPS.
_PATTERNS: tuple[tuple[str, SpeedClass], ...] = (
    (r"GeForce", GEFORCE),
    (r"\bRTX [345]0[5-9]0\b", GEFORCE),
    (r"\bRTX[ -]?PRO\b", RTX_PRO),
    (r"\bRTX ?A\d{3,4}\b", RTX_PRO),
    (r"\bRTX ?\d{3,4}( SFF)?[ -]Ada\b", RTX_PRO),
    (r"\b(A10|A40|L4|L40S)\b", RTX_PRO),
    (r"\b(A2|A16|L2)\b", RTX_PRO),  # 18/4.5, 18/4.5, 97/24
    (r"\b(A10G|L20|L40|L40G)\b", GEFORCE),  # 70/35, 120/60, 181/91, 181/91: GeForce's rates
    (rf"\bH20{_VGPU}\b", H20),
    (rf"\b(A100|H100){_VGPU}\b", DATA_CENTER),
    (rf"\b(A800|H800){_VGPU}\b", DATA_CENTER),  # as A100 and H100, with slower links
    (rf"\b(A30|AX800|H200|GH200){_VGPU}\b", DATA_CENTER),  # 165/10, as A100, as H100
    (rf"\bG?B[123]00{_VGPU}\b", DATA_CENTER),  # 2250/75 and alike
    (r"\bThor\b", DATA_CENTER),  # 259/8
    (r"\bOrin\b", ORIN),  # 43/5.3
    (r"\bGB10\b", RTX_PRO),  # 125/31
)
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), found) for pattern, found in _PATTERNS)


@lru_cache(maxsize=256)  # by name, so that each card of a process has its own answer
def class_of_name(name: str) -> SpeedClass | None:
    """The class of the first pattern that is in `name`; None where none is."""
    return next((found for pattern, found in _COMPILED if pattern.search(name)), None)


def speed_class(gpu: Gpu) -> SpeedClass:
    """The class of `gpu` by its name; SAFE for an unknown one, for other vendors' and for no particular GPU."""
    return class_of_name(gpu.name) if has_known_name(gpu) else SAFE


def has_known_name(gpu: Gpu) -> bool:
    """Whether the name of `gpu` chose its class."""
    return gpu.backend == "cuda" and class_of_name(gpu.name) is not None
