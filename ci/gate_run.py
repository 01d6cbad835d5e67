"""Runs compile gates in child processes, several at a time, the longest first."""

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from ..kernels.launch import Launch
from . import gate_folders
from .gate_compile import FAMILIES, Child
from .gate_facts import Capability, GateError
from .gate_outcome import Gate, Outcome
from .gate_work import family_outcomes, length, where

Group = list[Gate]  # one launch, on capabilities of one family
Proved = tuple[Capability, str, str | None]  # of which kernel and instruction one launch stands for the others
Progress = Callable[[Outcome], None]


@dataclass(frozen=True)
class Settings:
    """`jobs` compile at the same time, `directory` keeps facts (None: nowhere), `whole` shares no PTX."""

    jobs: int = os.cpu_count() or 1
    directory: Path | None = None
    whole: bool = False


def run(gates: Iterable[Gate], settings: Settings, progress: Progress = lambda outcome: None) -> list[Outcome]:
    """The outcomes of all `gates`, in their order.

    Of every kernel and matrix instruction, one launch is compiled for each architecture of a family first. Where its
    PTX is the same, and as much shared memory is needed, the others get their PTX from the first of the architectures.
    """
    gate_folders.remove_left_over()
    gates = list(gates)
    pool = _Pool(settings, progress)
    try:
        proofs, others = _split(_groups(gates))
        proving = [pool.submit(group) for group in proofs]
        alone = [pool.submit(group) for group in others if len(group) == 1]
        sharing = _alike(future.result() for future in proving)
        if settings.whole:
            sharing = set()
        rest = [pool.submit(group, _members(group, sharing)) for group in others if len(group) > 1]
        found = {_key((each.capability, each.launch)): each for f in (*proving, *alone, *rest) for each in f.result()}
    finally:
        pool.children.close()
    return [found[_key(gate)] for gate in gates]


def _members(group: Group, sharing: set[Proved]) -> frozenset[Capability]:
    return frozenset(gate[0] for gate in group if _proved(*gate) in sharing)


def _proved(capability: Capability, launch: Launch) -> Proved:
    return capability, launch.kernel, launch.instruction


def _key(gate: Gate) -> tuple:
    return gate[0], replace(gate[1], stage="")


def _groups(gates: list[Gate]) -> list[Group]:
    """Gates of one binary and one family belong together; the longest first."""
    family = {capability: index for index, members in enumerate(FAMILIES) for capability in members}
    groups: dict[tuple, Group] = {}
    for gate in gates:
        groups.setdefault((family[gate[0]], gate[1].binary), []).append(gate)
    return sorted(groups.values(), key=lambda group: (length(group[0][1]), len(group)), reverse=True)


def _split(groups: list[Group]) -> tuple[list[Group], list[Group]]:
    """(of each family, kernel and instruction, the longest that most of its architectures have; all other groups)."""
    proofs: dict[tuple, Group] = {}
    for group in groups:
        capability, launch = group[0]
        key = (next(family for family in FAMILIES if capability in family), launch.kernel, launch.instruction)
        if len(group) > len(proofs.get(key, group[:1])):
            proofs[key] = group
    chosen = list(proofs.values())
    return chosen, [group for group in groups if group not in chosen]


def _alike(proofs: Iterable[list[Outcome]]) -> set[Proved]:
    """What gets the PTX of the first architecture of its family."""
    found = set()
    for first, *others in proofs:
        for each in others:
            if first.facts and each.facts and _code(first) == _code(each):
                found.add(_proved(each.capability, each.launch))
    return found


def _code(outcome: Outcome) -> tuple[str, int]:
    return outcome.facts.ptx, outcome.facts.shared_bytes


class Children:
    """`count` threads, each with a child process of its own, to whom what they run may `call`."""

    def __init__(self, count: int):
        self._children: list[Child] = []
        self._own = threading.local()
        self._threads = ThreadPoolExecutor(count, initializer=self._start)

    def _start(self) -> None:
        self._own.child = Child()
        self._children.append(self._own.child)

    def submit(self, function: Callable, *arguments) -> Future:
        return self._threads.submit(function, *arguments)

    def call(self, where: str, function: Callable, *arguments):
        """As Child's."""
        return self._own.child.call(where, function, *arguments)

    def said(self) -> str:
        """As Child's."""
        return self._own.child.said()

    def close(self) -> None:
        """What has not begun never will."""
        self._threads.shutdown(cancel_futures=True)
        for child in self._children:
            child.close()


class _Pool:
    """Compiles gates in child processes."""

    def __init__(self, settings: Settings, progress: Progress):
        self.settings, self.progress = settings, progress
        self.lock = threading.Lock()
        self.children = Children(settings.jobs)

    def submit(self, group: Group, sharing: frozenset[Capability] = frozenset()) -> Future:
        return self.children.submit(self._outcomes, group, sharing)

    def _outcomes(self, group: Group, sharing: frozenset[Capability]) -> list[Outcome]:
        outcomes = self._compiled(group, sharing)
        with self.lock:
            for outcome in outcomes:
                self.progress(outcome)
        return outcomes

    def _compiled(self, group: Group, sharing: frozenset[Capability]) -> list[Outcome]:
        """A crash costs the one gate whose compiler crashed: the others are compiled again, each by itself."""
        try:
            return self.children.call(where(group[0]), family_outcomes, group, sharing, self.settings.directory)
        except GateError as error:
            if len(group) == 1:
                return [Outcome(*group[0], None, str(error), said=self.children.said())]
            return [outcome for gate in group for outcome in self._compiled([gate], frozenset())]
