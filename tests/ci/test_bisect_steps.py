"""One step of a bisect: what it finds of kernels that do one thing wrong, and that nothing of it reaches the next."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nvfp4_suite.ci.bisect_found import DIFFERS, Aim, Failure, Found
from nvfp4_suite.ci.bisect_run import Bisection, Line
from nvfp4_suite.ci.bisect_search import BAD, GOOD, SKIP
from nvfp4_suite.ci.golden_file import Refused

from ..meta.tree import ROOT
from . import fake_kernels
from .fake_kernels import point

PATIENCE = 5.0  # seconds that a step may take; a fake takes a fraction of one


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    found = fake_kernels.subject(tmp_path_factory.mktemp("bisect"), PATIENCE)
    with found.trials:
        yield found


@pytest.mark.parametrize(
    ("name", "kind", "place"),
    [
        ("wrong", DIFFERS, ""),
        ("unwritten", DIFFERS, ""),
        ("raises", "ValueError", "kernels/registry.py: run"),
        ("raises elsewhere", "ValueError", "kernels/registry.py: elsewhere"),
        ("raises another", "KeyError", "kernels/registry.py: run"),
        ("raises by a cause", "ValueError", "kernels/registry.py: elsewhere"),
        ("aborts", "dies of SIGABRT", "kernels/registry.py: run"),
        ("hangs", "hangs", "kernels/registry.py: run"),
        ("leaves", "ends without an answer", ""),
        ("leaves badly", "ends without an answer", ""),
        ("exits", "SystemExit", "kernels/registry.py: run"),
        ("does not compile", "SyntaxError", ""),
    ],
)
def test_a_failure_has_its_kind_and_place(subject, name, kind, place):
    found = subject.found(point(name))
    assert (found.failure.kind, found.failure.place) == (kind, place)
    assert Aim().verdict(found) == (BAD if kind == DIFFERS else SKIP)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("needs what is no more", "ImportError: cannot import name 'Nothing'"),
        ("no package", "it has no package kernels/"),
        ("has no kernel", "no kernel fake takes the case, but none"),
        ("takes no bf16", "no kernel fake takes the case, but none"),
        ("rounds as nothing else", "rounding"),
    ],
)
def test_what_todays_harness_cannot_judge_is_skipped(subject, name, why):
    found = subject.found(point(name))
    assert why in found.unusable
    assert Aim(failure=Failure("ImportError")).verdict(found) == SKIP


def test_what_is_right_is_good(subject):
    found = subject.found(point("right"))
    assert (found.failure, found.unusable, Aim().verdict(found)) == (None, None, GOOD)
    assert subject.kernels(point("right")) == ["fake"]


def test_a_step_starts_without_what_the_one_before_left(subject):
    """Its Triton cache, and a room of today's that was changed in memory."""
    for _ in range(2):
        assert subject.found(point("leaves marks")).failure is None


def test_what_a_step_has_started_ends_with_it(subject):
    assert subject.found(point("leaves a child")).failure is None
    assert "sleep 987" not in subprocess.run(["ps", "-wweo", "args"], capture_output=True, text=True).stdout


RAISES = Failure("ValueError", "kernels/registry.py: run", "3 is not 4")


@pytest.mark.parametrize(
    ("failure", "alike"),
    [
        (Failure("ValueError", "kernels/registry.py: run", "11 is not 4"), True),
        (Failure("ValueError", "kernels/registry.py: run", "three is not 4"), False),
        (Failure("ValueError", "kernels/experts.py: run", "3 is not 4"), False),
        (Failure("TypeError", "kernels/registry.py: run", "3 is not 4"), False),
        (None, False),
    ],
)
def test_failures_are_alike_in_kind_and_place_and_in_what_they_say_but_for_numbers(failure, alike):
    assert RAISES.is_like(failure) == alike
    assert Aim(failure=failure).verdict(Found(failure=RAISES)) == (BAD if alike else SKIP)


def test_another_digest_is_bad_where_it_is_asked_for():
    assert Aim().verdict(Found(digest="a")) == GOOD
    assert Aim(digest="b").verdict(Found(digest="a")) == BAD
    assert Aim(digest="a").verdict(Found(digest="a")) == GOOD


def bisected(subject, names: list[str], runs: int = 1, **options):
    """A bisect of a line of points with the kernels of these names."""
    points = {str(n): point(name, n) for n, name in enumerate(names)}
    parents = {str(n): (str(n - 1),) if n > 1 else () for n in range(len(names) - 1, 0, -1)}
    before = {one.id: points[str(n - 1)] for n, one in enumerate(points.values()) if n}
    line = Line(points["0"], points[str(len(names) - 1)], parents, points.__getitem__, lambda one: [before[one.id]])
    options = {"by_digest": False} | options
    return Bisection(subject, line, runs=runs, say=lambda step: None, **options).result()


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (["right", "right", "wrong", "wrong"], "2"),
        (["right", "hangs", "raises", "right", "wrong"], "4"),
        (["right", "right", "raises elsewhere", "right", "raises", "raises"], "4"),
        (["right", "raises another", "right", "says more", "right", "aborts", "aborts"], "5"),
        (["right", "right", "does not compile", "does not compile"], "2"),
        (["right", "wrong", "raises", "raises"], "1"),  # that it differs is bad, whatever the end's failure is
    ],
)
def test_bad_is_what_differs_or_fails_as_the_bad_end_does(subject, names, first):
    result = bisected(subject, names)
    assert [one.name for one in result.first_bad] == [first]
    assert result.confirmed


def test_points_that_cannot_be_judged_are_left_with_the_first_bad_one(subject):
    result = bisected(subject, ["right", "right", "raises", "needs what is no more", "wrong"])
    assert [one.name for one in result.first_bad] == ["4", "3", "2"]
    assert not result.confirmed


def test_other_bits_are_found_by_digest(subject):
    result = bisected(subject, ["right", "right", "wrong", "worse"])
    assert result.first_bad[0].name == "2"
    with pytest.raises(Refused, match=r"the bad end 1 is good: nothing fails there, and its digest is the good end's"):
        bisected(subject, ["right", "right"], by_digest=True)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["wrong", "right", "wrong"], "the good end 0 should be good, but: the output differs"),
        (["raises", "right", "wrong"], "the good end 0 should be good, but: ValueError: 3 is not 4"),
        (["right", "wrong", "right"], "the bad end 2 is good: nothing fails there"),
        (["right", "has no kernel"], "the bad end 1 cannot be judged: no kernel fake"),
        (["needs what is no more", "wrong"], "the good end 0 cannot be judged: ImportError"),
    ],
)
def test_ends_that_are_not_what_they_should_be(subject, names, message):
    with pytest.raises(Refused, match=message):
        bisected(subject, names)


class Varying:
    """A subject whose runs find what a list says, in turn."""

    repeat = "again"

    def __init__(self, *found: Found):
        self.left = list(found)

    def found(self, point) -> Found:
        return self.left.pop(0)


OK, OTHER, WRONG = Found("a"), Found("b"), Found("a", Failure(DIFFERS, "", "differs"))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([OK, WRONG, OK], "the good end 0 varies"),
        ([OK, OK, OK, WRONG, OK, WRONG], "the bad end 1 varies"),
        ([OK, OTHER, OK, OTHER, OTHER, OTHER], "the good end 0 varies"),
    ],
)
def test_an_end_that_varies_is_refused(found, message):
    with pytest.raises(Refused, match=message):
        bisected(Varying(*found), ["a", "b"], runs=3, by_digest=True)


def test_a_digest_that_nobody_asked_for_is_told_of():
    with pytest.raises(Refused, match=r"the bad end 1 is good: .* its digest is another, a -> b: --digest"):
        bisected(Varying(OK, OTHER), ["a", "b"])


@pytest.mark.parametrize(("last", "confirmed"), [([OK, WRONG], True), ([OK, OK], False), ([WRONG, WRONG], False)])
def test_what_is_found_is_checked_once_more(last, confirmed):
    assert bisected(Varying(OK, WRONG, *last), ["a", "b"]).confirmed == confirmed


def test_a_digest_that_changes_again_is_noted(subject):
    result = bisected(Varying(OK, Found("c"), OTHER, OK, OTHER), ["a", "b", "c"], by_digest=True)
    assert result.confirmed and "the digest changes again until 2" in result.notes[0]


HANGING = """
import signal, sys
from pathlib import Path
from nvfp4_suite.ci.bisect_trial import Point, Trials

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a session that runs in the background ignores

def extract(tree, folder):
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels/__init__.py").touch()
    (folder / "kernels/launch.py").write_text("import time; open('hangs', 'w'); time.sleep(999)")

with Trials(Path(sys.argv[1]), extract, 600) as trials:
    trials.ask(Point("1", "1", kernels="1"), "plan_case")
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_stays_of_a_bisect_that_is_killed(tmp_path, how):
    work = tmp_path / "work"
    work.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    child = subprocess.Popen([sys.executable, "-c", HANGING, str(work)], cwd=ROOT, env=env, stderr=subprocess.DEVNULL)
    try:
        assert _becomes(lambda: (work / "hangs").exists())
        assert len(_left(work)) > 1
    finally:
        child.send_signal(how)
        child.wait(timeout=60)
    assert _becomes(lambda: not _left(work)), _left(work)


def _becomes(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not true() and time.monotonic() < deadline:
        time.sleep(0.1)
    return true()


def _left(work: Path) -> list[str]:
    """The folder and the processes of a bisect in `work`."""
    lines = subprocess.run(["ps", "-wweo", "args"], capture_output=True, text=True).stdout.splitlines()
    return [line for line in lines if str(work) in line] + [str(work)] * work.exists()
