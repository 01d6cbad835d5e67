"""Measures contenders against each other: judged, captured, warmed up, then timed in turns."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from . import sensors
from .check import Wrong, check, check_replay
from .contenders import Contender
from .sensors import Reading
from .stages import Function
from .statistics import by_contender, order, rounds_for, settled
from .timing import Replay

WARM_UP = 0.3  # seconds at most, until times no longer change
WARM_ROUNDS = 64
BUDGET = 0.25  # seconds of timed rounds, where the fewest do not take longer


class Timer(Protocol):
    """What measures; timing.GraphTimer on a GPU."""

    def capture(self, function: Function) -> Replay: ...

    def delayed(self, function: Function, milliseconds: float) -> Function: ...

    def times(self, replays: Sequence[Replay], turns: Sequence[int]) -> list[float]: ...

    def forget(self) -> list[Reading]: ...


@dataclass(frozen=True)
class Measured:
    """`times` in milliseconds, one a round, none where `wrong` says why. `replayed`: from a graph. `sensors`: as a row
    has them.
    """

    contender: Contender
    wrong: str | None = None
    times: tuple[float, ...] = ()
    error: float | None = None
    digest: str | None = None
    replayed: bool = True
    sensors: dict | None = None

    @property
    def milliseconds(self) -> float:
        """The median of all rounds."""
        return median(self.times)


def measure(contenders: Sequence[Contender], timer: Timer, budget: float = BUDGET) -> list[Measured]:
    """Each of `contenders` in their order; a wrong one has no times, and the others are timed without it."""
    wrong, ready = {}, {}
    for place, contender in enumerate(contenders):
        try:
            ready[place] = _ready(contender, timer)
        except Wrong as error:
            wrong[place] = str(error)
    replays = [replay for replay, *_ in ready.values()]
    times = dict(zip(ready, timed(replays, timer, budget), strict=True)) if ready else {}
    facts = sensors.summary(timer.forget())
    found = []
    for place, contender in enumerate(contenders):
        if place in wrong:
            found.append(Measured(contender, wrong[place]))
            continue
        replay, error, digest = ready[place]
        found.append(Measured(contender, None, tuple(times[place]), error, digest, replay.graph is not None, facts))
    return found


def timed(replays: Sequence[Replay], timer: Timer, budget: float) -> list[list[float]]:
    """Milliseconds of each replay, a round after the other, once they have settled."""
    count, rounds = len(replays), []
    while sum(rounds) < 1000 * WARM_UP and len(rounds) < WARM_ROUNDS and not settled(rounds):
        both = timer.times(replays, order(count, 2))
        rounds += [sum(both[:count]), sum(both[count:])]
    turns = order(count, rounds_for(median(rounds[-2:]) / 1000, budget))
    timer.forget()
    return by_contender(turns, timer.times(replays, turns))


def _ready(contender: Contender, timer: Timer) -> tuple[Replay, float | None, str]:
    """What is timed, and the error and digest of what it writes. Raises Wrong."""
    checked = check(contender)
    replay = timer.capture(contender.function)
    check_replay(contender, replay, checked)
    return replay, checked.error, checked.digest
