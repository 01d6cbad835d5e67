"""The self-test passes where a card is as it should be, and fails where it is not."""

import pytest

from nvfp4_suite.bench import self_test
from nvfp4_suite.bench.__main__ import main

from .fake_host import FakeTimer, host, noise

ARGUMENTS = ["--self-test", "--shape", "4x2x64x32", "--tokens", "5", "--kernel", "right"]


@pytest.fixture(autouse=True)
def _right(right):
    """The subject is a kernel that costs nothing."""


def lines(timer, capsys) -> tuple[int, list[str], list[str]]:
    code = main(ARGUMENTS, host(timer))
    said = capsys.readouterr().out.splitlines()
    return code, [line for line in said if line.startswith("ok")], [line for line in said if line.startswith("FAILED")]


def test_a_card_that_is_as_it_should_be_passes(capsys):
    timer = FakeTimer(lambda place, turn: 2.0 * (1 + turn / 3000) * noise(turn))
    code, good, bad = lines(timer, capsys)
    assert code == 0 and not bad and len(good) == 2 * self_test.REPEATS + 1
    (delay,) = timer.delays
    assert delay == pytest.approx(self_test.INJECTED * 2.0, rel=0.05)
    assert sum("right + 3%" in line and "slower" in line for line in good) == self_test.REPEATS
    assert sum("right again" in line and "same" in line for line in good) == self_test.REPEATS
    assert any("off by 2% gets no time" in line for line in good)


def test_a_slowdown_that_goes_unseen_fails(capsys):
    class Deaf(FakeTimer):
        def delayed(self, function, milliseconds):
            return function

    code, _, bad = lines(Deaf(lambda place, turn: noise(turn)), capsys)
    assert code == 1 and len(bad) == self_test.REPEATS
    assert all("right + 3%" in line and "should be slower, by 1.02 to 1.05" in line for line in bad)


def test_a_place_that_is_slower_by_itself_fails(capsys):
    """As where the first of each round finds a colder card."""
    code, _, bad = lines(FakeTimer(lambda place, turn: (1.04 if place == 1 else 1.0) * noise(turn)), capsys)
    assert code == 1 and any("right again" in line and "should be neither slower nor faster" in line for line in bad)


def test_times_that_say_nothing_fail(capsys):
    code, _, bad = lines(FakeTimer(lambda place, turn: noise(turn, 0.5)), capsys)
    assert code == 1 and bad


def test_a_wrong_output_that_is_timed_fails(capsys, monkeypatch):
    monkeypatch.setattr(self_test, "OFF_BY", 1.0)
    code, _, bad = lines(FakeTimer(lambda place, turn: noise(turn)), capsys)
    assert code == 1 and bad == ["FAILED 4x2x64x32 T = 5: an output that is off by 0% was timed"]
