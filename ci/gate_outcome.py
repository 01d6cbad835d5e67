"""A gate, and what became of it. Pure."""

from dataclasses import dataclass

from ..kernels.launch import Launch
from .gate_facts import Capability, Facts

Gate = tuple[Capability, Launch]


@dataclass(frozen=True)
class Outcome:
    """What became of one gate: `facts`, or the `error` that says why there are none and what the compiler `said`."""

    capability: Capability
    launch: Launch
    facts: Facts | None
    error: str = ""
    seconds: float = 0.0
    reused: bool = False
    said: str = ""
