"""Golden digests computed by many processes at once: over all cores, and over every free GPU of this host.

Processes are fresh, and so are the caches they compile into. Work comes in shares whose outputs have kernels in common,
so that few binaries are compiled twice. A second run of the same work gives each share to another GPU, where there are
several: a digest that depends on the GPU is one that varies.
"""

import queue
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from ..contract.case import Case
from . import golden_due, leases, recording
from .gate_compile import arch_name
from .golden_due import Task
from .golden_process import Process, Start
from .gpus import NoGpu
from .leases import Placement, Slot
from .outcomes import Outcome, Refused
from .recording import Engine

MOST = 16  # outputs in a share: many shares keep all processes busy to the end, few compile less twice
MOST_WORKERS = 16  # on a device


class Share(NamedTuple):
    """Outputs that one process computes, and the folder, by name, that their kernels are compiled into."""

    folder: str
    tasks: list[Task]


@dataclass(frozen=True)
class Run:
    """All outcomes, and the engine as its processes found it."""

    engine: Engine
    outcomes: dict[Task, Outcome]


@dataclass
class _Turn:
    """A run in the making: for each device what is left to do, and what came out so far."""

    engine: str
    start: Start
    cache: Path
    left: list["queue.SimpleQueue[Share]"]
    total: int
    outcomes: dict[Task, Outcome] = field(default_factory=dict)
    found: Engine | None = None
    lock: Lock = field(default_factory=Lock)


def runs(engine: str, cases: tuple[Case, ...], times: int, *, cache: str | None = None) -> list[Run]:
    """All that `engine`, one of recording.ENGINES, owes of `cases`, so many `times`, each in fresh processes.

    `cache`: a folder whose compiled kernels are used, and added to; without one, all is compiled anew. Raises Refused
    where there is no such engine on this host, or where its GPUs are of several kinds.
    """
    with _places(engine) as (name, places):
        work = shares(golden_due.tasks(name, cases))
        return [_run(engine, places, work, turn, cache) for turn in range(times)]


@contextmanager
def _places(engine: str) -> Iterator[tuple[str, list[list[Slot | None]]]]:
    """The engine's name, and for each device the places of its processes. A CPU is one device, without leases."""
    if engine != "gpu":
        yield engine, [[None] * leases.cores()]
        return
    try:
        leased, busy = leases.lease_mine(one_kind="CUDA_VISIBLE_DEVICES chooses")
    except NoGpu as error:
        raise Refused(f"the engine gpu {error}; --engine reference needs none") from error
    for other in busy:
        print(f"without {other.device}, which is held by {other.owner}", file=sys.stderr)
    try:
        devices = [one.device for one in leased]
        workers = max(1, min(MOST_WORKERS, leases.cores() // len(devices)))
        slots = Placement(leased, workers * len(devices)).free
        yield arch_name(devices[0].capability), [[s for s in slots if s.visible.device == one] for one in devices]
    finally:
        for one in leased:
            one.release()


def shares(tasks: list[Task]) -> list[Share]:
    """`tasks` in parts of one kernel and dtype, which have most binaries in common; those that take longest first."""

    def alike(task: Task) -> tuple:
        return task.case.tier != "all", task.kernel or "reference", task.case.dtype

    found = []
    for (_, kernel, dtype), same in groupby(sorted(tasks, key=alike), key=alike):
        group = list(same)
        for first in range(0, len(group), MOST):
            found.append(Share(f"{kernel}-{dtype}-{len(found)}", group[first : first + MOST]))
    return found


def _run(engine: str, places: list[list[Slot | None]], work: list[Share], turn: int, cache: str | None) -> Run:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="triton-cache-", ignore_cleanup_errors=True) as fresh:
        left = [queue.SimpleQueue() for _ in places]
        state = _Turn(engine, recording.start, Path(cache or fresh), left, sum(len(share.tasks) for share in work))
        for number, share in enumerate(work):
            left[(number + turn) % len(places)].put(share)
        crew = [(slot, left[device]) for device, slots in enumerate(places) for slot in slots[: left[device].qsize()]]
        _serve_all(state, crew)
    print(
        f"{len(state.outcomes)} outputs in {time.perf_counter() - began:.1f} s, in {len(crew)} processes"
        + (f", on {len(places)} of the host's GPUs" if engine == "gpu" else ""),
        file=sys.stderr,
    )
    return Run(state.found or Engine(engine, "", {}), state.outcomes)


def _serve_all(turn: _Turn, crew: list[tuple[Slot | None, "queue.SimpleQueue[Share]"]]) -> None:
    """Lets each of the `crew` work until nothing is left; where one raises, the others end what they have at hand."""
    with ThreadPoolExecutor(max(1, len(crew))) as pool:
        served = [pool.submit(_serve, turn, slot, work) for slot, work in crew]
        try:
            wait(served, return_when=FIRST_EXCEPTION)
        finally:
            for work in turn.left:
                while not work.empty():
                    _next(work)
    for one in served:
        one.result()


def _next(work: "queue.SimpleQueue[Share]") -> Share | None:
    try:
        return work.get_nowait()
    except queue.Empty:
        return None


def _serve(turn: _Turn, slot: Slot | None, work: "queue.SimpleQueue[Share]") -> None:
    """Does shares until none is left. A process in which something went wrong computes no other output."""
    process = None
    try:
        while share := _next(work):
            for task in share.tasks:
                process = process or _started(turn, slot)
                began = time.perf_counter()
                outcome = process.outcome(task, str(turn.cache / share.folder))
                _note(turn, task, outcome, slot, time.perf_counter() - began)
                if outcome.problem:
                    process.end()
                    process = None
    finally:
        if process:
            process.end()


def _started(turn: _Turn, slot: Slot | None) -> Process:
    """A new process. Raises Refused where it is on another engine than those before it."""
    process = Process(turn.engine, slot, turn.start)
    with turn.lock:
        if turn.found is None:
            turn.found = process.engine
            print(f"{turn.found.name}: {', '.join(map(' '.join, turn.found.facts.items()))}", file=sys.stderr)
        if process.engine != turn.found:
            process.end()
            raise Refused(f"all processes should be alike, but one has {process.engine} and one {turn.found}")
    return process


def _note(turn: _Turn, task: Task, outcome: Outcome, slot: Slot | None, seconds: float) -> None:
    verdict = f"{'FAILED' if outcome.problem else 'ok'} {seconds:.1f} s" + (f", {slot.visible.device}" if slot else "")
    with turn.lock:
        turn.outcomes[task] = outcome
        print(f"[{len(turn.outcomes)}/{turn.total}] {task} {verdict}", file=sys.stderr, flush=True)
