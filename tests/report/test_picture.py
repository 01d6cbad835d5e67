"""The picture: every wrong cell where it is, no other one, and nothing but numbers in it."""

import re
import xml.etree.ElementTree as xml

import pytest
import torch

from nvfp4_suite.ci import wrong_cells
from nvfp4_suite.ci.report import picture
from nvfp4_suite.ci.report.picture import CELL, HEIGHT, LEFT, TOP, WIDTH, Cells

from . import fleet

Box = tuple[float, float, float, float]


def boxes(cells: Cells, name: str) -> list[Box]:
    """(x, y, width, height) of the rectangles of all paths of this class."""
    root = xml.fromstring(str(picture.svg(cells)))
    paths = "".join(path.get("d") for path in root.iter("path") if path.get("class") == name)
    return [tuple(map(float, box)) for box in re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h-[\d.]+z", paths)]


def grid(*rows: str, shape=None, cell=(1, 1)) -> Cells:
    """Cells of one digit each."""
    wrong = [[int(one) for one in row] for row in rows]
    return Cells.of({"shape": list(shape or (len(wrong), len(wrong[0]))), "cell": list(cell), "wrong": wrong})


def test_a_wrong_cell_is_drawn_where_it_is():
    assert boxes(grid("000", "010"), "s4") == [(LEFT + CELL, TOP + CELL, CELL, CELL)]


def test_neighbours_of_a_row_are_one_box():
    assert boxes(grid("0110", "1000"), "s4") == [
        (LEFT + CELL, TOP, 2 * CELL, CELL),
        (LEFT, TOP + CELL, CELL, CELL),
    ]


@pytest.mark.parametrize(("count", "shade"), [(1, "s1"), (4, "s1"), (5, "s2"), (9, "s3"), (13, "s4"), (16, "s4")])
def test_a_shade_tells_how_much_of_a_cell_is_wrong(count, shade):
    cells = Cells((4, 4), (4, 4), ((count,),))
    assert [name for name in ("s1", "s2", "s3", "s4") if boxes(cells, name)] == [shade]


def test_a_cell_at_the_end_is_full_with_fewer_elements():
    cells = Cells.of({"shape": [3, 5], "cell": [2, 4], "wrong": [[0, 2], [0, 1]]})
    assert [cells.room(row, column) for row in range(2) for column in range(2)] == [8, 2, 4, 1]
    assert len(boxes(cells, "s4")) == 2


@pytest.mark.parametrize("shape", [(1, 1), (3, 1040), (33, 272), (1025, 2049), (129, 48)])
def test_what_the_counts_say_is_on_the_picture_and_inside_it(shape):
    """The boxes cover as much of the grid as cells are wrong, at the places of the elements."""
    wrong = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.3
    wrong[0, 0] = True
    cells = Cells.of(wrong_cells.counts(wrong))
    rows, columns = len(cells.wrong), len(cells.wrong[0])
    width, height = min(CELL, WIDTH / columns), min(CELL, HEIGHT / rows)
    drawn = [box for name in ("s1", "s2", "s3", "s4") for box in boxes(cells, name)]
    covered = {(place, round((y - TOP) / height)) for x, y, w, _ in drawn for place in _columns(x, w, width)}
    assert covered == {(c, r) for r in range(rows) for c in range(columns) if cells.wrong[r][c]}
    frame = [float(part) for part in xml.fromstring(str(picture.svg(cells))).get("viewBox").split()]
    assert frame[:2] == [0, 0] and frame[2] <= 340
    every = [*drawn, *boxes(cells, "profile"), *boxes(cells, "grid")]
    assert all(x + w <= frame[2] + 0.1 and y + h <= frame[3] + 0.1 for x, y, w, h in every)


def _columns(x: float, width: float, cell: float) -> range:
    first = round((x - LEFT) / cell)
    return range(first, first + round(width / cell))


def test_profiles_tell_how_much_of_rows_and_columns_is_wrong():
    right, below = LEFT + 2 * CELL + picture.GAP, TOP + 2 * CELL + picture.GAP
    assert boxes(grid("11", "01"), "profile") == [
        (right, TOP, picture.PROFILE, CELL),
        (right, TOP + CELL, picture.PROFILE / 2, CELL),
        (LEFT, below, CELL, picture.PROFILE / 2),
        (LEFT + CELL, below, CELL, picture.PROFILE),
    ]


def test_edges_of_tiles_and_ticks_are_at_their_columns():
    cells = Cells.of(fleet.wrong_tile())
    root = xml.fromstring(str(picture.svg(cells)))
    step = 64 * min(CELL, WIDTH / 68) / 4
    lines = re.findall(r"M([\d.]+) ", next(p for p in root.iter("path") if p.get("class") == "tile").get("d"))
    assert [float(x) for x in lines] == pytest.approx([LEFT + place * step for place in (1, 2, 3, 4)], abs=0.01)
    labels = {text.text: float(text.get("x")) for text in root.iter("text") if text.get("class") is None}
    assert labels == {str(64 * n): pytest.approx(LEFT + n * step, abs=0.01) for n in range(5)}


def test_the_caption_says_how_many_and_what_a_cell_is():
    assert Cells.of(fleet.wrong_tile()).caption == (
        "1,024 of 8,976 elements are wrong: rows x columns; a cell is 1 row x 4 columns, darker where more of it is"
    )
    assert grid("01").caption == "1 of 2 elements are wrong: rows x columns, each element a cell"


GOOD = {"shape": [2, 2], "cell": [1, 1], "wrong": [[0, 1], [0, 0]]}


@pytest.mark.parametrize(
    "change",
    [
        {"wrong": [[0, 1]]},
        {"wrong": [[0, 1], [0]]},
        {"wrong": [[0, "<script>"], [0, 0]]},
        {"wrong": [[0, -1], [0, 0]]},
        {"wrong": [[0, 2], [0, 0]]},
        {"wrong": [[0, True], [0, 0]]},
        {"wrong": [[0, 0.5], [0, 0]]},
        {"wrong": None},
        {"shape": [2, 2, 2]},
        {"shape": [0, 2], "wrong": []},
        {"shape": ["2", 2]},
        {"cell": [0, 1]},
        {"shape": [1, 10**9], "cell": [1, 1], "wrong": [[]]},
    ],
    ids=str,
)
def test_what_is_no_grid_is_refused(change):
    Cells.of(GOOD)
    with pytest.raises(ValueError, match=r"^wrong "):
        Cells.of(GOOD | change)
    with pytest.raises(ValueError, match=r"^wrong "):
        Cells.of([GOOD])
