"""A host without a GPU: kernels run in the interpreter, and times come from a clock that a test sets."""

import math
import re
from collections.abc import Callable, Sequence

from nvfp4_suite.bench.host import Host
from nvfp4_suite.bench.sensors import Reading
from nvfp4_suite.bench.stages import Function
from nvfp4_suite.bench.timing import Replay
from nvfp4_suite.bench.yardsticks import Yardsticks
from nvfp4_suite.contract.gpus import PORTABLE

FACTS = {"gpu": "NVIDIA H200", "triton": "3.8.0", "torch": "2.13.0", "driver": "580.0"}


class FakeTimer:
    """`cost(place, turn)` is what the replay in that place takes at that turn, in milliseconds; turns count from 0.

    What was captured is not run when it is timed.
    """

    def __init__(self, cost: Callable[[int, int], float] = lambda place, turn: 1.0):
        self.cost, self.turn, self.delays, self.turns = cost, 0, [], []

    def capture(self, function: Function) -> Replay:
        function()
        return Replay(function)

    def delayed(self, function: Function, milliseconds: float) -> Function:
        def run():
            return function()

        run.delay = milliseconds
        self.delays.append(milliseconds)
        return run

    def times(self, replays: Sequence[Replay], turns: Sequence[int]) -> list[float]:
        found = []
        for place in turns:
            found.append(self.cost(place, self.turn) + getattr(replays[place].run, "delay", 0))
            self.turn += 1
        self.turns.append(list(turns))
        return found

    def forget(self) -> list[Reading]:
        return [Reading(1980, 2619, 40, 300.0, 0x4)]


def noise(turn: int, share: float = 0.01) -> float:
    """A factor near 1 that looks random, the same in every run."""
    return 1 + share * (math.modf(math.sin(turn * 12.9898) * 43758.5453)[0])


def host(timer: FakeTimer | None = None) -> Host:
    return Host("cpu", PORTABLE, timer or FakeTimer(), FACTS, "a fake host", Yardsticks(size=32, copied=4096))


def cells(line: str) -> list[str]:
    """A table's line, cut where two spaces or more are."""
    return re.split(r" {2,}", line.strip())
