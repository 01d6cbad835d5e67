"""Times on a GPU: a captured graph replayed after the L2 cache has been emptied, between two events.

The host enqueues many turns before it waits, so that what a replay costs it is hidden behind the emptying. Nothing is
repeated inside a graph: every replay finds cold caches.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .sensors import Reading, Sensors
from .stages import Function, Output

AT_ONCE = 48  # turns that are enqueued before the host waits
FLUSHED = 4  # times the L2 cache's size
ASSUMED_L2 = 64 * 2**20  # where torch does not say


@dataclass
class Replay:
    """`run()` starts it once. Of a graph, `out` is the output that every run overwrites; else it is None."""

    run: Function
    graph: torch.cuda.CUDAGraph | None = None
    out: Output | None = None

    def again(self) -> Output:
        """What one more run writes, where NaN was before (in integers -1)."""
        if self.out is None:
            return self.run()
        for tensor in self.out if isinstance(self.out, tuple) else (self.out,):
            tensor.fill_(math.nan if tensor.is_floating_point() else -1)
        self.run()
        return self.out


def _waits_for_the_host(function: Function) -> bool:
    """Whether torch sees that it does. A graph would refuse it too, but before torch 2.12 keeps its memory for good.

    pytorch/pytorch#180395 and #190348: the allocator takes the capture to be under way, and gives nothing back.
    """
    with warnings.catch_warnings(action="ignore"):  # that this sees torch's own waits alone
        torch.cuda.set_sync_debug_mode("error")
    try:
        function()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


class GraphTimer:
    """Captures functions on this process's GPU, and times them in turns. `readings` are the sensors' since `forget`."""

    def __init__(self, sensors: Sensors):
        self.sensors, self.readings = sensors, []
        properties = torch.cuda.get_device_properties(0)
        cache = getattr(properties, "L2_cache_size", 0) or ASSUMED_L2
        self._other = torch.zeros(FLUSHED * cache // 4, dtype=torch.int32, device="cuda")

    def capture(self, function: Function) -> Replay:
        """`function` as a graph, once it has run outside of one; as it is where it waits for the host, or where a graph
        refuses it.
        """
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            function()
            waits = _waits_for_the_host(function)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        if waits:
            return Replay(function)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                out = function()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            torch.cuda.synchronize()
            return Replay(function)
        return Replay(graph.replay, graph, out)

    def delayed(self, function: Function, milliseconds: float) -> Function:
        """`function`, and after it a kernel that does nothing for so long."""
        cycles = round(milliseconds * self._cycles_per_millisecond())

        def run():
            out = function()
            torch.cuda._sleep(cycles)
            return out

        return run

    def times(self, replays: Sequence[Replay], turns: Sequence[int]) -> list[float]:
        """Milliseconds of each of `turns`, places in `replays`, in that order."""
        found = []
        for first in range(0, len(turns), AT_ONCE):
            events = [self._start(replays[turn]) for turn in turns[first : first + AT_ONCE]]
            self.readings.append(self.sensors.read())  # while the GPU is at work
            torch.cuda.synchronize()
            found += [start.elapsed_time(end) for start, end in events]
        return found

    def forget(self) -> list[Reading]:
        """The readings so far, which are no longer kept."""
        readings, self.readings = self.readings, []
        return readings

    def _start(self, replay: Replay) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._empty_cache()
        start.record()
        replay.run()
        end.record()
        return start, end

    def _empty_cache(self) -> None:
        """Fills L2 with lines of another buffer; read last, so that none waits to be written back."""
        self._other.zero_()
        self._other.amax()

    def _cycles_per_millisecond(self) -> float:
        """Of torch's sleeping kernel, by the difference of two lengths, which leaves out what a launch takes."""
        short, long = 200_000, 2_000_000

        def sleeping(cycles: int) -> Function:
            return lambda: torch.cuda._sleep(cycles) or torch.empty(0)

        pair = [self.capture(sleeping(cycles)) for cycles in (short, long)]
        times = self.times(pair, [0, 1] * 6)
        return (long - short) / (min(times[1::2]) - min(times[::2]))
