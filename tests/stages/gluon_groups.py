"""The groups of warps of a Gluon kernel on the CPU: who runs when, what they share, and how they wait for each other.

Each group is a thread, of which one runs at a time. It hands over at every barrier, to the first in `order` that need
not wait. Asynchronous copies are done at once, or, if `late`, when every group waits; until then what they fill is
poison. So who reads or writes too early gets or leaves something wrong, and who waits for ever is told.
"""

from collections.abc import Callable, Sequence
from threading import Condition, Thread

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

POISON = 0xFF
THREADS_PER_WARP = 32


class Deadlock(AssertionError):
    """Every group that has not ended waits."""


class Groups:
    """Runs functions, the groups, in turns. `late`: those who append to `copies` leave it to `run` to do them."""

    def __init__(self, order: Sequence[int], late: bool):
        self.order, self.late = order, late
        self.copies: list[Callable[[], None]] = []
        self._changed = Condition()
        self._ready: dict[int, Callable[[], bool]] = {}  # by group that has not ended: whether it may go on
        self._turn, self._error = None, None

    def run(self, groups: Sequence[Callable[[], None]]) -> None:
        """Returns when all have ended.

        Raises what one of them raised, Deadlock where they wait for each other, AssertionError where copies are left.
        """
        self._ready = dict.fromkeys(range(len(groups)), lambda: True)
        threads = [Thread(target=self._group, args=(name, group)) for name, group in enumerate(groups)]
        self._turn = self._next()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._error:
            raise self._error
        assert not self.copies, f"{len(self.copies)} copies were begun that nobody waited for"

    def wait(self, ready: Callable[[], bool] = lambda: True) -> None:
        """Called by the group that runs: hands over, and returns when it has its turn again and `ready()`."""
        me = self._turn
        self._ready[me] = ready
        self._hand_over(me)

    def _group(self, name: int, group: Callable[[], None]) -> None:
        try:
            self._await_turn(name)
            with np.errstate(all="ignore"):  # as the repaired interpreter has it, of which a thread knows nothing
                group()
        except Exception as error:
            self._error = self._error or error
        del self._ready[name]
        self._hand_over(None)

    def _hand_over(self, me: int | None) -> None:
        with self._changed:
            self._turn = None if self._error else self._next()
            self._changed.notify_all()
        if me is not None:
            self._await_turn(me)

    def _await_turn(self, name: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._turn == name or self._error)
        if self._error:
            raise self._error

    def _next(self) -> int | None:
        """The group that goes on; None where all have ended."""
        while self._ready:
            for name in self.order:
                if name in self._ready and self._ready[name]():
                    return name
            if not self.copies:
                self._error = Deadlock(f"groups {', '.join(map(str, self._ready))} wait for ever")
                return None
            self.copies.pop(0)()
        return None


class Barrier:
    """One mbarrier, as PTX has it: a phase ends when `count` have arrived in it."""

    def __init__(self, groups: Groups):
        self.groups, self.count, self.missing, self.phase = groups, None, None, 0

    def init(self, count: int) -> None:
        self.count = self.missing = count

    def arrive(self, threads: int = 1) -> None:
        assert self.missing and threads <= self.missing, f"{threads} arrive where {self.missing} are missing"
        self.missing -= threads
        if not self.missing:
            self.missing, self.phase = self.count, self.phase ^ 1

    def wait(self, phase: int) -> None:
        """Returns when the latest phase of this parity has ended."""
        self.groups.wait(lambda: self.phase != phase)


class Memory:
    """A part of shared memory: an array of `dtype`, whose first dimension `index` takes away."""

    def __init__(self, data: np.ndarray, dtype: tl.dtype):
        self.data, self.dtype = data, dtype

    @classmethod
    def allocated(cls, dtype: tl.dtype, shape: Sequence[int], _layout: object) -> "Memory":
        data = np.empty(shape, np.float32 if dtype == tl.float32 else np.uint8)
        data.view(np.uint8).fill(POISON)
        return cls(data, dtype)

    def index(self, at: int) -> "Memory":
        return Memory(self.data[int(at)], self.dtype)

    def permute(self, order: Sequence[int]) -> "Memory":
        return Memory(self.data.transpose(order), self.dtype)

    def load(self, _layout: object) -> tl.tensor:
        return tl.tensor(TensorHandle(self.data.copy(), self.dtype), tl.block_type(self.dtype, list(self.data.shape)))

    def store(self, value: tl.tensor) -> None:
        assert value.dtype == self.dtype
        self.data[...] = value.handle.data
