"""Long tests, and those that go together, stand where workers' parts of the list begin, and nothing else moves."""

from types import SimpleNamespace

import pytest

from ..order import long_first


def _tests(names: str) -> list:
    """One test a letter; capitals are long, those that are digits go together with equal ones."""

    def marker(name: str):
        marks = {"long": name.isupper(), "together": name.isdigit() and SimpleNamespace(args=(name,))}
        return lambda mark: marks[mark] or None

    return [SimpleNamespace(name=name, get_closest_marker=marker(name)) for name in names]


@pytest.mark.parametrize(
    ("names", "workers", "order"),
    [
        ("abcdefgh", 2, "abcdefgh"),
        ("abcdXfgh", 1, "Xabcdfgh"),
        ("abcdXfgY", 2, "XabcYdfg"),
        ("abcdefXYZ", 2, "XZabYcdef"),  # cut into XZab and Ycdef
        ("XY", 8, "YX"),
        ("", 4, ""),
        ("ab1c1d2ef2gh", 2, "11abcd22efgh"),
        ("ab1c1d2ef2gh", 1, "1122abcdefgh"),
        ("ab1c1dXef2gh", 1, "X112abcdefgh"),  # long ones before them
        ("ab1c1dXef2gh", 2, "Xabcde112fgh"),  # and, where there are others, in a part of their own
        ("ab1c1dXe2g3h", 3, "Xabc113d2egh"),
        ("a121b1c", 1, "1112abc"),
    ],
)
def test_long_first(names, workers, order):
    found = "".join(item.name for item in long_first(_tests(names), workers))
    assert sorted(found) == sorted(names)
    assert found == order
