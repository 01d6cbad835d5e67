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


@dataclass(frozen=True)
class Ready:
    """A contender that was judged: captured, with its error and digest, or `wrong`."""

    contender: Contender
    wrong: str | None = None
    replay: Replay | None = None
    error: float | None = None
    digest: str | None = None


def measure(contenders: Sequence[Contender], timer: Timer, budget: float = BUDGET) -> list[Measured]:
    """Each of `contenders` in their order; a wrong one has no times, and the others are timed without it."""
    return race([ready(one, timer) for one in contenders], timer, budget)


def ready(contender: Contender, timer: Timer) -> Ready:
    """What is timed is judged first, and what is captured writes the same."""
    try:
        checked = check(contender)
        replay = timer.capture(contender.function)
        check_replay(contender, replay, checked)
    except Wrong as error:
        return Ready(contender, str(error))
    return Ready(contender, None, replay, checked.error, checked.digest)


def race(contenders: Sequence[Ready], timer: Timer, budget: float = BUDGET) -> list[Measured]:
    """Times those that are right in turns."""
    right = [one for one in contenders if not one.wrong]
    times = timed([one.replay for one in right], timer, budget) if right else []
    facts, left = sensors.summary(timer.forget()), iter(times)
    found = []
    for one in contenders:
        known = (one.contender, one.wrong)
        if not one.wrong:
            known += (tuple(next(left)), one.error, one.digest, one.replay.graph is not None, facts)
        found.append(Measured(*known))
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
