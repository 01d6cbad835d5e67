"""What a time is measured against: useful work, the bytes that must move, measured rates, and the card's peak. Pure.

Useful flops are those of routed rows alone, whatever a kernel pads: 2 x T x top_k x 2 x I x H for gate_up and 2 x T x
top_k x I x H for down, together FreeToken's 2 x T x top_k x 3 x hidden x moe_intermediate.

Bytes count what any kernel must move at least once: every packed weight, block scale and global of each expert that
some route names, activations in and out, routes' ids and weights. What is handed from launch to launch does not count
for a whole layer; for one stage alone it is what goes in and out.
"""

import re
from dataclasses import dataclass

from ..contract.shapes import LayerShape

STAGES = ("layer", "align", "gate_up", "activation", "down", "sum")
FUSED = "gate_up_activated"  # a gate_up that stores f(gate) * up, of half the width


@dataclass(frozen=True)
class Work:
    """`flops` and `moved` bytes of one run; no flops where nothing is multiplied."""

    flops: float
    moved: float


@dataclass(frozen=True)
class Rates:
    """Measured in the same run: flop/s of cuBLAS bf16 8192^3, bytes/s read plus written of a copy on the device."""

    matrix: float
    copy: float


@dataclass(frozen=True)
class Shares:
    """Of the measured rates, what a time reached."""

    matrix: float
    memory: float

    @property
    def roofline(self) -> float:
        """The roofline's time, the larger of flops / rate and bytes / bandwidth, over the time taken."""
        return max(self.matrix, self.memory)

    @property
    def bound(self) -> str:
        """What the roofline is made of here."""
        return "matrix" if self.matrix >= self.memory else "memory"


def work(stage: str, shape: LayerShape, tokens: int, experts_hit: int) -> Work:
    """What `stage`, of STAGES or FUSED, has to do, where `experts_hit` experts are named by some route."""
    routes, h, i = tokens * shape.top_k, shape.hidden, shape.intermediate
    gate_up, down = (experts_hit * _weights(rows, k) for rows, k in ((2 * i, h), (h, i)))
    rows = {"layer": 2 * tokens * h, "gate_up": tokens * h + routes * 2 * i, "activation": routes * 3 * i}
    rows |= {"down": routes * (i + h), "sum": (routes + tokens) * h, "align": 0, FUSED: tokens * h + routes * i}
    routing = {"layer": 8, "down": 8, "align": 8}.get(stage, 4)  # bytes a route
    banks = {"layer": gate_up + down, "gate_up": gate_up, FUSED: gate_up, "down": down}.get(stage, 0)
    flops = {"gate_up": 4, FUSED: 4, "down": 2, "layer": 6}.get(stage, 0) * routes * i * h
    return Work(flops, banks + 2 * rows[stage] + routing * routes)


def unquantized(shape: LayerShape, stage: str, tokens: int, experts_hit: int) -> Work:
    """The same GEMMs on weights of 16 bits and rows that lie sorted by expert: torch._grouped_mm."""
    routes, h, i = tokens * shape.top_k, shape.hidden, shape.intermediate
    gate_up, down = experts_hit * 4 * i * h + 2 * routes * (h + 2 * i), experts_hit * 2 * i * h + 2 * routes * (i + h)
    moved = {"gate_up": gate_up, "down": down, "layer": gate_up + down}[stage]
    return Work(work(stage, shape, tokens, experts_hit).flops, moved)


def shares(work: Work, seconds: float, rates: Rates) -> Shares:
    return Shares(work.flops / seconds / rates.matrix, work.moved / seconds / rates.copy)


def _weights(rows: int, k: int) -> int:
    """Bytes of one expert's [rows, k]: codes, a scale per 16, a global per row."""
    return rows * (k // 2 + k // 16 + 4)


# Dense peaks at the rated boost clock, flop/s, by card and by what the matrix instruction multiplies. RTX: FreeToken's
# W4A4 pull request, 188 SMs x 2.43 GHz and 170 SMs x 2.41 GHz x 4096 flops a clock. H100 SXM, H200: NVIDIA's data
# sheets, 989 TFLOP/s of dense bf16; a PCIe or NVL card clocks lower, so it is not in the table.
_PEAKS: tuple[tuple[str, str, float], ...] = (
    (r"\bRTX PRO 6000 Blackwell\b(?!.*Max-Q)", "fp4", 188 * 2.43e9 * 4096),
    (r"\bRTX 5090\b(?! (D|Laptop))", "fp4", 170 * 2.41e9 * 4096),
    (r"\bH200\b(?! NVL)", "bf16", 989e12),
    (r"\bH100 80GB HBM3\b", "bf16", 989e12),
)


def peak(gpu: str, operand: str) -> float | None:
    """Flop/s of the card named `gpu` for operands "bf16" or "fp4"; None for a card or an operand not in the table."""
    return next((rate for pattern, kind, rate in _PEAKS if kind == operand and re.search(pattern, gpu)), None)


def mfu(work: Work, seconds: float, gpu: str, operand: str) -> float | None:
    """Useful flops over the whole time, against the peak; None where there is none."""
    limit = peak(gpu, operand)
    return work.flops / seconds / limit if limit and work.flops else None
