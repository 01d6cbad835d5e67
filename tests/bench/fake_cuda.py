"""Stands in for torch in timing.py: CUDA's streams, graphs and events, which only note in which order they are used."""

from contextlib import contextmanager
from types import SimpleNamespace

import torch

L2 = 4096


class FakeTorch:
    """`notes` are what happened, in order; a replay takes `cost(name)` milliseconds, a sleep 1 ms for 1000 cycles.

    While a graph is captured nothing is noted but what it will replay. `waits` raises then, and where waiting is an
    error.
    """

    OutOfMemoryError, int32 = torch.OutOfMemoryError, torch.int32
    empty = staticmethod(torch.empty)

    def __init__(self, cost=lambda name: 1.0):
        self.notes, self.cost, self.now, self.capturing, self.sync_mode = [], cost, 0.0, None, "default"
        stream = SimpleNamespace(wait_stream=lambda other: self.note("wait"))
        fake = self
        self.cuda = SimpleNamespace(
            Stream=lambda: stream,
            current_stream=lambda: stream,
            stream=self._nothing,
            synchronize=lambda: self.note("synchronize"),
            set_sync_debug_mode=lambda mode: setattr(self, "sync_mode", mode),
            get_device_properties=lambda index: SimpleNamespace(L2_cache_size=L2),
            CUDAGraph=lambda: Graph(fake),
            graph=self._captured,
            Event=lambda enable_timing: Event(fake, enable_timing),
            _sleep=lambda cycles: self.work("sleep", cycles / 1000),
        )

    def zeros(self, size, dtype, device):
        assert device == "cuda"
        return SimpleNamespace(size=size, zero_=lambda: self.work("flush", 0.1), amax=lambda: self.work("read", 0.1))

    def work(self, name, milliseconds=None):
        """What a kernel of that name does: it takes its time, or is captured."""
        milliseconds = self.cost(name) if milliseconds is None else milliseconds
        if self.capturing is not None:
            self.capturing.append((name, milliseconds))
        else:
            self.note(name)
            self.now += milliseconds

    def waits(self):
        """What reads a number back from the GPU does."""
        if self.capturing is not None:
            self.note("a failed capture")
            raise RuntimeError("operation not permitted when stream is capturing")
        if self.sync_mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")

    def note(self, what):
        self.notes.append(what)

    @contextmanager
    def _nothing(self, stream):
        yield

    @contextmanager
    def _captured(self, graph):
        self.capturing = graph.kernels
        try:
            yield
        finally:
            self.capturing = None


class Graph:
    def __init__(self, fake):
        self.fake, self.kernels = fake, []

    def replay(self):
        for kernel in self.kernels:
            self.fake.work(*kernel)


class Event:
    def __init__(self, fake, enable_timing):
        assert enable_timing
        self.fake, self.at = fake, None

    def record(self):
        self.fake.note("event")
        self.at = self.fake.now

    def elapsed_time(self, end):
        assert self.fake.notes[-1] == "synchronize"
        return end.at - self.at
