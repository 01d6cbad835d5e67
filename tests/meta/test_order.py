"""Long tests stand where workers' parts of the list begin, and nothing else moves."""

from types import SimpleNamespace

import pytest

from ..order import long_first


def _tests(names: str) -> list:
    """One test a letter; capitals are long."""
    return [SimpleNamespace(name=name, get_closest_marker=lambda mark, name=name: name.isupper()) for name in names]


@pytest.mark.parametrize(
    ("names", "workers", "order"),
    [
        ("abcdefgh", 2, "abcdefgh"),
        ("abcdXfgh", 1, "Xabcdfgh"),
        ("abcdXfgY", 2, "XabcYdfg"),
        ("abcdefXYZ", 2, "YXabZcdef"),  # cut into YXab and Zcdef
        ("XY", 8, "YX"),
        ("", 4, ""),
    ],
)
def test_long_first(names, workers, order):
    found = "".join(item.name for item in long_first(_tests(names), workers))
    assert sorted(found) == sorted(names)
    assert found == order
