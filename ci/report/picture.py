"""Where an output is wrong, as a picture: a grid of cells with profiles of its rows and columns, as inline SVG. Pure.

One unit is a pixel on a phone, where the picture is as wide as the page; elsewhere it is drawn larger.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from markupsafe import Markup, escape

from .text import count

MOST = 256  # cells in a line of the grid that are drawn
LEFT, TOP, PROFILE, GAP = 34, 14, 30, 4  # room for row labels, column labels and profiles
WIDTH, HEIGHT, CELL = 340 - LEFT - PROFILE - GAP - 2, 240, 12  # of the grid at most, and of one cell at most
LEVELS = 4  # shades
TILE = 64  # weight rows that a GEMM's tile has: columns of the output
LABELS = 6  # on an axis, about


@dataclass(frozen=True)
class Cells:
    """What ci/wrong_cells.py counts: an output of `shape` (rows, columns), and how many of a cell's are `wrong`."""

    shape: tuple[int, int]
    cell: tuple[int, int]
    wrong: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, plain: object) -> "Cells":
        """Raises ValueError for anything but a grid whose cells cover the shape and hold no more than they can."""
        try:
            shape, cell = (tuple(plain[name]) for name in ("shape", "cell"))
            found = cls(shape, cell, tuple(tuple(row) for row in plain["wrong"]))
        except (TypeError, KeyError) as error:
            raise ValueError(f"wrong should have shape, cell and wrong: {error}") from error
        found._check()
        return found

    def _check(self) -> None:
        numbers = [*self.shape, *self.cell, *(count for row in self.wrong for count in row)]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("wrong holds something other than counts")
        if len(self.shape) != 2 or len(self.cell) != 2 or not all((*self.shape, *self.cell)):
            raise ValueError(
                f"wrong is of shape {self.shape} in cells of {self.cell}, but should be of rows and columns"
            )
        rows, columns = (-(-size // step) for size, step in zip(self.shape, self.cell, strict=True))
        if max(rows, columns) > MOST or [len(row) for row in self.wrong] != [columns] * rows:
            raise ValueError(f"wrong should be {rows} rows of {columns} counts, and at most {MOST}")
        if any(self.wrong[r][c] > self.room(r, c) for r in range(rows) for c in range(columns)):
            raise ValueError("wrong counts more elements in a cell than it has")

    def room(self, row: int, column: int) -> int:
        """How many elements a cell has: fewer where the output ends in it."""
        (rows, columns), (height, width) = self.shape, self.cell
        return min(height, rows - row * height) * min(width, columns - column * width)

    @property
    def total(self) -> int:
        return sum(map(sum, self.wrong))

    @property
    def caption(self) -> str:
        """As "4,858 of 8,976 elements are wrong; a cell is 1 row x 4 columns, darker where more of it is"."""
        (rows, columns), (height, width) = self.shape, self.cell
        wrong = f"{self.total:,} of {rows * columns:,} elements are wrong"
        if self.cell == (1, 1):
            return f"{wrong}: rows x columns, each element a cell"
        sizes = f"{count(height, 'row')} x {count(width, 'column')}"
        return f"{wrong}: rows x columns; a cell is {sizes}, darker where more of it is"


@dataclass(frozen=True)
class _Frame:
    """Where the grid's cells are: `x`, `y` of the first one, `width` and `height` of each."""

    cells: Cells
    width: float
    height: float

    @classmethod
    def of(cls, cells: Cells) -> "_Frame":
        rows, columns = len(cells.wrong), len(cells.wrong[0])
        return cls(cells, min(CELL, WIDTH / columns), min(CELL, HEIGHT / rows))

    @property
    def right(self) -> float:
        return LEFT + self.width * len(self.cells.wrong[0])

    @property
    def bottom(self) -> float:
        return TOP + self.height * len(self.cells.wrong)


def svg(cells: Cells) -> Markup:
    """The picture. Colours and text sizes are the page's: classes "s1" to "s4", "tile", "profile" and "grid"."""
    frame = _Frame.of(cells)
    size = f"{_n(max(frame.right + GAP + PROFILE, 120))} {_n(frame.bottom + GAP + PROFILE)}"
    parts = [
        f'<svg class="where" role="img" viewBox="0 0 {size}" aria-label="{escape(cells.caption)}">',
        _rectangle("grid", LEFT, TOP, frame.right - LEFT, frame.bottom - TOP),
        *_shades(frame),
        *_tiles(frame),
        *_labels(frame),
        _profiles(frame),
        "</svg>",
    ]
    return Markup("".join(parts))


def _shades(frame: _Frame) -> Iterator[str]:
    """A path for each shade: neighbours of one shade in a row are one rectangle."""
    paths: dict[int, list[str]] = {}
    for row, counts in enumerate(frame.cells.wrong):
        shades = [_level(count, frame.cells.room(row, column)) for column, count in enumerate(counts)]
        for level, first, last in _runs(shades):
            x, y = LEFT + first * frame.width, TOP + row * frame.height
            paths.setdefault(level, []).append(_box(x, y, (last - first) * frame.width, frame.height))
    for level, boxes in sorted(paths.items()):
        if level:
            yield f'<path class="s{level}" d="{"".join(boxes)}"/>'


def _level(count: int, room: int) -> int:
    """0 for a cell without a wrong element, LEVELS for one that is wrong as a whole."""
    return -(-count * LEVELS // room)


def _runs(values: list[int]) -> Iterator[tuple[int, int, int]]:
    """(value, first, behind the last) of each run of equal values."""
    first = 0
    for place in range(1, len(values) + 1):
        if place == len(values) or values[place] != values[first]:
            yield values[first], first, place
            first = place


def _tiles(frame: _Frame) -> Iterator[str]:
    """A line at every edge of a tile, where they lie apart enough to be seen."""
    step = TILE * frame.width / frame.cells.cell[1]
    if step < 6:
        return
    edges = range(TILE, frame.cells.shape[1], TILE)
    lines = (f"M{_n(LEFT + place / TILE * step)} {TOP}V{_n(frame.bottom)}" for place in edges)
    yield f'<path class="tile" d="{"".join(lines)}"/>'


def _labels(frame: _Frame) -> Iterator[str]:
    (rows, columns), (height, width) = frame.cells.shape, frame.cells.cell
    for place in ticks(columns):
        x = LEFT + place / width * frame.width
        yield f'<text x="{_n(x)}" y="{TOP - 4}">{place}</text>'
    for place in ticks(rows):
        y = TOP + place / height * frame.height
        yield f'<text class="row" x="{LEFT - 4}" y="{_n(y + 8)}">{place}</text>'


def ticks(size: int) -> Iterable[int]:
    """0 and multiples of a power of two, about LABELS of them."""
    step = 1
    while step * LABELS < size:
        step *= 2
    return range(0, size, step)


def _profiles(frame: _Frame) -> str:
    """On the right, how much of each row of cells is wrong; below, of each column."""
    cells, boxes = frame.cells, []
    rows, columns = range(len(cells.wrong)), range(len(cells.wrong[0]))
    for row in rows:
        share = sum(cells.wrong[row]) / sum(cells.room(row, column) for column in columns)
        boxes.append(_box(frame.right + GAP, TOP + row * frame.height, share * PROFILE, frame.height))
    for column in columns:
        share = sum(line[column] for line in cells.wrong) / sum(cells.room(row, column) for row in rows)
        boxes.append(_box(LEFT + column * frame.width, frame.bottom + GAP, frame.width, share * PROFILE))
    return f'<path class="profile" d="{"".join(boxes)}"/>'


def _rectangle(name: str, x: float, y: float, width: float, height: float) -> str:
    return f'<path class="{name}" d="{_box(x, y, width, height)}"/>'


def _box(x: float, y: float, width: float, height: float) -> str:
    """A rectangle as part of a path; one without an area is left out."""
    if not width or not height:
        return ""
    return f"M{_n(x)} {_n(y)}h{_n(width)}v{_n(height)}h-{_n(width)}z"


def _n(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
