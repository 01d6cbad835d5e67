"""Finds the first bad point of a history in which some points can be neither good nor bad. Pure.

A history is `parents`: of every suspect, newest first, the points before it; those that are no suspects are good.
"""

from collections.abc import Callable, Iterable

GOOD, BAD, SKIP = "good", "bad", "skip"

Parents = dict[str, tuple[str, ...]]
Test = Callable[[str, int], str]  # a point, and how many suspects there are yet: GOOD, BAD or SKIP


def search(parents: Parents, bad: str, test: Test) -> list[str]:
    """Suspects that are left, newest first: the first bad one is among them, and the newest of them is bad.

    There is one, unless points next to the first bad one are skipped. `bad` is a suspect that is known to be bad. A
    point that is good has good ancestors, one that is bad has bad descendants: where that is not so, what is found is
    one of several places where good turns to bad.
    """
    lines = _lineages(parents)
    suspects, skipped, in_a_row = lines[bad], set(), 0
    while untested := [point for point in _among(suspects, parents) if point != bad and point not in skipped]:
        point = _choice(untested, suspects, lines, in_a_row)
        verdict = test(point, suspects.bit_count())
        if verdict == SKIP:
            skipped.add(point)
            in_a_row += 1
            continue
        in_a_row = 0
        if verdict == BAD:
            bad = point
            suspects &= lines[point]
        else:
            suspects &= ~lines[point]
    return _among(suspects, parents)


def _lineages(parents: Parents) -> dict[str, int]:
    """Of each suspect, itself and its ancestors: the bits of their places in `parents`."""
    found: dict[str, int] = {}
    for place, point in reversed(list(enumerate(parents))):
        found[point] = 1 << place
        for parent in parents[point]:
            found[point] |= found.get(parent, 0)
    return found


def _among(suspects: int, parents: Parents) -> list[str]:
    return [point for place, point in enumerate(parents) if suspects >> place & 1]


def _choice(untested: Iterable[str], suspects: int, lines: dict[str, int], in_a_row: int) -> str:
    """The point that has half of the suspects behind it. After skips, away from where they were: 1/4, 3/4, 1/8, ..."""
    wanted = _spread(in_a_row + 1) * suspects.bit_count()
    return min(untested, key=lambda point: abs((lines[point] & suspects).bit_count() - wanted))


def _spread(number: int) -> float:
    """1/2, 1/4, 3/4, 1/8, 5/8, 3/8, ...: van der Corput's sequence, which leaves no large gap anywhere."""
    found, place = 0.0, 0.5
    while number:
        found += place * (number & 1)
        number, place = number >> 1, place / 2
    return found
