"""The search of a bisect, on made-up histories: lines, branches and merges, with points that cannot be judged."""

from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvfp4_suite.ci.bisect_search import BAD, GOOD, SKIP, Parents, search


def line(length: int) -> Parents:
    """Points "1" to `length`, the last of which is first in a history, as the newest."""
    return {str(n): (str(n - 1),) if n > 1 else () for n in range(length, 0, -1)}


def searched(parents: Parents, bad: set[str], skipped: set[str] = frozenset()) -> tuple[list[str], list[str]]:
    """What is left, and what was tested on the way."""
    tested = []

    def test(point: str, left: int) -> str:
        tested.append(point)
        return SKIP if point in skipped else BAD if point in bad else GOOD

    return search(parents, next(iter(parents)), test), tested


def from_on(first: int, length: int) -> set[str]:
    return {str(n) for n in range(first, length + 1)}


@pytest.mark.parametrize("length", [1, 2, 3, 29, 100])
def test_every_place_in_a_line_is_found_in_as_few_steps_as_can_be(length):
    for first in range(1, length + 1):
        left, tested = searched(line(length), from_on(first, length))
        assert left == [str(first)]
        assert len(tested) <= ceil(log2(length)) + 1 if length > 1 else not tested


def test_skipped_points_are_passed():
    left, _ = searched(line(30), from_on(21, 30), {"14", "15", "16", "17"})
    assert left == ["21"]


def test_skipped_points_next_to_the_first_bad_one_are_left_with_it():
    """Nothing says whether one of them was the first."""
    left, _ = searched(line(30), from_on(19, 30), {"17", "18"})
    assert left == ["19", "18", "17"]
    left, _ = searched(line(4), from_on(2, 4), {"1", "2", "3"})
    assert left == ["4", "3", "2", "1"]


def test_a_stretch_of_skipped_points_costs_few_steps():
    """The half in the middle cannot be judged."""
    left, tested = searched(line(1000), from_on(900, 1000), {str(n) for n in range(250, 750)})
    assert left == ["900"]
    assert len(tested) <= 15


MERGED: Parents = {  # 9 merges 8, of a branch from 3, into 7
    "9": ("7", "8"),
    "8": ("6",),
    "7": ("5",),
    "6": ("4",),
    "5": ("3",),
    "4": ("3",),
    "3": ("2",),
    "2": (),
}


@pytest.mark.parametrize(
    ("bad", "first"),
    [
        ({"9", "8", "6"}, "6"),  # from the branch
        ({"9", "7", "5"}, "5"),  # from the line
        ({"9"}, "9"),  # from the merge itself
        (set(MERGED) - {"2"}, "3"),
    ],
)
def test_the_first_bad_point_is_found_in_a_branch_that_was_merged(bad, first):
    assert searched(MERGED, bad)[0] == [first]


@st.composite
def histories(draw) -> tuple[Parents, str]:
    """A history with merges, and one of its points."""
    length = draw(st.integers(1, 20))
    parents = {}
    for n in range(length):
        older = [str(m) for m in range(n)]
        before = draw(st.lists(st.sampled_from(older), min_size=1, max_size=2, unique=True)) if older else []
        parents[str(n)] = tuple(before)
    newest = dict(reversed(parents.items()))
    return newest, draw(st.sampled_from(sorted(_with_ancestors(newest, str(length - 1)))))


def _with_ancestors(parents: Parents, point: str) -> set[str]:
    return {point}.union(*(_with_ancestors(parents, before) for before in parents[point]))


@given(histories(), st.data())
def test_one_fault_is_found_in_any_history(history, data):
    """Every descendant has it. Skips never lead elsewhere: it is among what is left, and the newest of that is bad."""
    parents, first = history
    bad = {point for point in parents if first in _with_ancestors(parents, point)}
    assert searched(parents, bad)[0] == [first]
    skipped = data.draw(st.sets(st.sampled_from(list(parents))))
    left, tested = searched(parents, bad, skipped)
    assert first in left
    assert left[0] in bad
    assert set(left[1:]) <= skipped
    assert len(tested) == len(set(tested))
