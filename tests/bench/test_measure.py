"""Right first, in turns, and against each other: contenders whose function and time a test sets."""

from dataclasses import replace

import pytest
import torch

from nvfp4_suite.bench.check import Wrong, check, check_replay
from nvfp4_suite.bench.contenders import Contender
from nvfp4_suite.bench.measure import measure
from nvfp4_suite.bench.roofline import Work
from nvfp4_suite.bench.timing import Replay
from nvfp4_suite.ci.recording import digest

from .fake_host import FakeTimer, noise

RIGHT = torch.arange(8, dtype=torch.bfloat16)


def judged(out):
    assert torch.equal(out, RIGHT), "the output differs from RIGHT"
    return 0.0


def contender(label="right", function=lambda: RIGHT.clone(), **rest):
    return Contender(label, function, judged, Work(1.0, 1.0), **rest)


def test_a_right_output_has_its_error_and_digest():
    found = check(contender())
    assert (found.error, found.digest) == (0.0, digest(RIGHT))
    assert check(contender(sampled=lambda out: out[:2])).digest == digest(RIGHT[:2])


def test_a_wrong_output_gets_no_time_and_the_others_do():
    timer = FakeTimer()
    first, wrong, last = measure([contender(), contender("off", lambda: RIGHT + 1), contender()], timer)
    assert wrong.wrong.startswith("off: the output differs from RIGHT") and wrong.times == ()
    assert first.wrong is last.wrong is None and first.times and last.times
    assert {place for turns in timer.turns for place in turns} == {0, 1}  # two were captured


def test_what_is_never_written_is_nan():
    """Also where what was there before would have been right."""

    def forgets():
        del before[:]
        return torch.empty(8, dtype=torch.bfloat16)

    def finds(out):
        assert out.isnan().all()
        return 0.0

    before = [RIGHT.clone()]
    check(replace(contender(function=forgets), check=finds))
    assert not torch.are_deterministic_algorithms_enabled()


def alternating(*outs):
    """A function that gives one after the other, again and again."""
    calls = [0]

    def run():
        calls[0] += 1
        return outs[(calls[0] - 1) % len(outs)].clone()

    return run


def test_two_runs_that_differ_are_wrong_where_bytes_are_promised():
    other = contender("varies", alternating(RIGHT, RIGHT + 1))
    with pytest.raises(Wrong, match="varies: two runs on the same inputs give other bytes"):
        check(other)


def test_without_that_promise_each_run_is_judged():
    with pytest.raises(Wrong, match="varies: the output differs"):
        check(contender("varies", alternating(RIGHT, RIGHT + 1), same=False))
    check(contender("varies", alternating(RIGHT, RIGHT), same=False))


def test_a_graph_that_writes_something_else_is_wrong():
    one = contender("stale")
    checked, out = check(one), RIGHT.clone()
    with pytest.raises(Wrong, match="the captured graph gives other bytes than the run that was judged"):
        check_replay(one, Replay(lambda: None, None, out), checked)  # writes nothing, so leaves the poison
    check_replay(one, Replay(lambda: out.copy_(RIGHT), None, out), checked)
    with pytest.raises(Wrong, match="the output differs"):
        check_replay(replace(one, same=False), Replay(lambda: None, None, out), checked)


def test_turns_alternate_from_the_first_to_the_last():
    timer = FakeTimer(lambda place, turn: 1.0 + place)
    measure([contender(), contender()], timer, budget=0.1)
    turns = timer.turns[-1]
    assert turns == [0, 1, 1, 0] * (len(turns) // 4) and len(turns) >= 32
    assert all(set(some[:2]) == {0, 1} for some in timer.turns)  # while warming up too


def test_nothing_is_timed_until_times_have_settled():
    """The first turns are of a card that is still waking up."""
    timer = FakeTimer(lambda place, turn: 1 + 2 * 0.9**turn if turn < 40 else 1.0)
    (found,) = measure([contender()], timer)
    assert set(found.times) == {1.0} and found.milliseconds == 1.0


def test_a_card_that_never_settles_is_timed_all_the_same():
    timer = FakeTimer(lambda place, turn: 1.0 + turn / 10)
    (found,) = measure([contender()], timer)
    assert sum(map(len, timer.turns[:-1])) <= 66 and len(found.times) >= 16


def test_short_runs_have_more_rounds_than_long_ones():
    rounds = {}
    for milliseconds in (0.5, 5.0, 500.0):
        (found,) = measure([contender()], FakeTimer(lambda place, turn, ms=milliseconds: ms), budget=0.25)
        rounds[milliseconds] = len(found.times)
    assert rounds == {0.5: 80, 5.0: 50, 500.0: 16}


def test_clocks_are_beside_each_time():
    (found,) = measure([contender()], FakeTimer(lambda place, turn: noise(turn)))
    expected = {"sm_mhz": 1980, "sm_mhz_lowest": 1980, "memory_mhz": 2619, "celsius": 40, "watts": 300.0}
    assert found.sensors == expected | {"slowed_by": ["power cap"]}
