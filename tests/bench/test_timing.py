"""What the timer asks of CUDA, in which order, by a fake that notes it. That a cache is really empty needs a GPU."""

import pytest
import torch

from nvfp4_suite.bench import timing
from nvfp4_suite.bench.sensors import Sensors
from nvfp4_suite.bench.timing import GraphTimer

from .fake_cuda import L2, FakeTorch


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeTorch(lambda name: {"a": 3.0, "b": 5.0}.get(name, 1.0))
    monkeypatch.setattr(timing, "torch", fake)
    return fake


def kernel(cuda, name):
    def function():
        cuda.work(name)
        return torch.zeros(2)

    return function


def test_each_turn_is_one_replay_behind_an_emptied_cache(cuda):
    timer = GraphTimer(Sensors(None))
    pair = [timer.capture(kernel(cuda, name)) for name in "ab"]
    del cuda.notes[:]
    assert timer.times(pair, [0, 1, 1]) == pytest.approx([3.0, 5.0, 5.0])
    turns = [["flush", "read", "event", name, "event"] for name in "abb"]
    assert cuda.notes == [*turns[0], *turns[1], *turns[2], "synchronize"]


def test_the_cache_is_emptied_by_more_than_it_holds(cuda):
    assert GraphTimer(Sensors(None))._other.size * 4 >= 4 * L2


def test_what_is_captured_has_run_before_on_a_stream_of_its_own(cuda):
    replay = GraphTimer(Sensors(None)).capture(kernel(cuda, "a"))
    assert cuda.notes == ["wait", "a", "a", "wait", "synchronize"] and replay.graph.kernels == [("a", 3.0)]
    assert replay.again().isnan().all()  # nothing writes it here, so that what was there before is gone


def test_the_host_waits_now_and_then(cuda):
    timer = GraphTimer(Sensors(None))
    replay = timer.capture(kernel(cuda, "a"))
    del cuda.notes[:]
    assert len(timer.times([replay], [0] * 100)) == 100
    assert cuda.notes.count("synchronize") == 3 == len(timer.forget()) and timer.forget() == []


def test_what_waits_for_the_host_runs_as_it_is_and_no_capture_is_tried(cuda):
    """One that fails costs the process its memory: pytorch/pytorch#190348."""

    def reads_back():
        cuda.waits()
        return kernel(cuda, "b")()

    timer = GraphTimer(Sensors(None))
    replay = timer.capture(reads_back)
    assert replay.graph is None and replay.out is None and cuda.sync_mode == "default"
    assert timer.times([replay], [0]) == [5.0] and "a failed capture" not in cuda.notes


def test_what_waits_only_the_first_time_is_captured(cuda):
    first = iter([cuda.waits])
    replay = GraphTimer(Sensors(None)).capture(lambda: next(first, lambda: cuda.work("a"))())
    assert replay.graph.kernels == [("a", 3.0)]


def test_what_cannot_be_captured_for_another_reason_runs_as_it_is(cuda):
    def refuses():
        if cuda.capturing is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        return kernel(cuda, "b")()

    replay = GraphTimer(Sensors(None)).capture(refuses)
    assert replay.graph is None and replay.out is None


def test_no_room_is_no_reason_to_run_without_a_graph(cuda):
    def takes_all():
        if cuda.capturing is not None:
            raise torch.OutOfMemoryError("no memory")

    with pytest.raises(torch.OutOfMemoryError):
        GraphTimer(Sensors(None)).capture(takes_all)


def test_a_delay_is_captured_behind_what_it_delays(cuda):
    timer = GraphTimer(Sensors(None))
    replay = timer.capture(timer.delayed(kernel(cuda, "a"), 0.25))
    assert replay.graph.kernels == [("a", 3.0), ("sleep", pytest.approx(0.25, rel=0.01))]
    assert timer.times([replay], [0]) == pytest.approx([3.25], rel=0.01)
