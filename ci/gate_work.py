"""What a child process does of the compile gates: one launch on the architectures of one family."""

import time
from math import prod
from pathlib import Path

from ..kernels.launch import Launch
from . import gate_cache
from .gate_compile import Binary, arch_name, assembled, binary_of, facts_of_binary
from .gate_facts import Capability, Facts, GateError
from .gate_known import Known, known_failure
from .gate_outcome import Gate, Outcome
from .gate_said import SAID


class Family:
    """One launch on several capabilities of a family: Triton's PTX of the first may serve those in `sharing`."""

    def __init__(self, gates: list[Gate], sharing: frozenset[Capability], directory: Path | None):
        self.head, self.head_binary = gates[0][0], None
        self.gates, self.sharing = gates, sharing - {self.head}
        self.cache = gate_cache.Cache(directory)

    def outcomes(self) -> list[Outcome]:
        return [self._outcome(*gate) for gate in self.gates]

    def _outcome(self, capability: Capability, launch: Launch) -> Outcome:
        start, before = time.perf_counter(), SAID.length()
        try:
            if kept := _kept_failure(self.cache, capability, launch):
                return Outcome(capability, launch, None, kept, time.perf_counter() - start, reused=True)
            facts, reused = self._facts(capability, launch)
        except Exception as error:  # also of a kernel's module that this Triton cannot import
            text = str(error) if isinstance(error, GateError) else f"{where((capability, launch))}: {error!r}"
            _keep_failure(self.cache, capability, launch, error)
            return Outcome(capability, launch, None, text, time.perf_counter() - start, said=SAID.since(before))
        return Outcome(capability, launch, facts, "", time.perf_counter() - start, reused)

    def _facts(self, capability: Capability, launch: Launch) -> tuple[Facts, bool]:
        heads = [None, self.head] if capability in self.sharing else [None]
        keys = [gate_cache.key(launch, capability, head) for head in heads]
        for key in keys:
            if found := self.cache.get(key):
                return found, True
        facts = facts_of_binary(self._binary(capability, launch), capability)
        self.cache.put(keys[1 if facts.head else 0], facts)
        return facts, False

    def _binary(self, capability: Capability, launch: Launch) -> Binary:
        if capability not in self.sharing:
            made = binary_of(launch, capability)
            if capability == self.head:
                self.head_binary = made
            return made
        if self.head_binary is None:
            self.head_binary = binary_of(launch, self.head)
        return assembled(launch, self.head_binary, self.head, capability)


def _kept_failure(cache: gate_cache.Cache, capability: Capability, launch: Launch) -> str:
    """Why this gate did not compile before, empty if it is to be compiled."""
    return (cache.get_failure(gate_cache.failure_key(launch, capability)) or "") if _known(capability, launch) else ""


def _keep_failure(cache: gate_cache.Cache, capability: Capability, launch: Launch, error: Exception) -> None:
    """Keeps why a gate does not compile, where the table says that it does not, and why.

    Nothing else is kept: a full disk, a signal or too little memory fail in many words, and not the next time.
    """
    known = _known(capability, launch)
    if known and isinstance(error, GateError) and known.explains(str(error), compiled=False):
        cache.put_failure(gate_cache.failure_key(launch, capability), str(error))


def _known(capability: Capability, launch: Launch) -> Known | None:
    from triton import __version__

    return known_failure(capability, launch, __version__)


def family_outcomes(gates: list[Gate], sharing: frozenset[Capability], directory: Path | None) -> list[Outcome]:
    """The outcomes of `gates`, one launch on several capabilities, in this process."""
    return Family(gates, sharing, directory).outcomes()


def length(launch: Launch) -> int:
    """Grows with the tile and with the time that `launch` takes to compile; kernels with a K loop are above others."""
    sizes = prod(value for _, value in launch.constexprs if isinstance(value, int) and value)
    return sizes * (1000 if "k_units" in dict(launch.arguments) else 1)


def where(gate: Gate) -> str:
    return f"{gate[1].label} on {arch_name(gate[0])}"
