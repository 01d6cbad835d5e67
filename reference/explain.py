"""The text of a failure: what was wrong, case, statistics, first and worst elements, pattern, repro, environment."""

import platform
from collections.abc import Sequence

import torch
from torch import Tensor

from .chunks import chunked

SHOWN = 3  # elements at the start, and as many of the worst

Section = tuple[str, Sequence[str]]  # a label and its lines


def report(what: str, context: dict[str, object], sections: Sequence[Section] = ()) -> str:
    """The text of a failure: `what`, the context's key and value pairs, `sections`, and what the session ran on.

    Labels stand on the left, lines start in one column. A section without lines is left out.
    """
    named = [(key, [str(value)]) for key, value in context.items() if key != "repro"]
    repro = [("repro", [str(context["repro"])])] if "repro" in context else []
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    where = f"torch {torch.__version__}, Python {platform.python_version()}, {device}"
    labelled = [*named, *sections, *repro, ("environment", [where])]
    width = max(len(label) for label, _ in labelled) + 2
    body = [
        (label if place == 0 else "").ljust(width) + line
        for label, lines in labelled
        for place, line in enumerate(lines)
    ]
    return "\n".join([what, *body])


def counted(wrong: Tensor) -> str:
    """How many of how many."""
    return f"{wrong.count_nonzero()} of {wrong.numel()}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines whose columns are aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def totals(actual: Tensor, expected: Tensor) -> list[Section]:
    """What an output and the expected one hold, and how far they are apart as a whole."""
    counts = [("actual", [_counts(actual)]), ("expected", [_counts(expected)])]
    return [*counts, ("difference", [_size(actual, expected)])]


def difference(
    actual: Tensor, expected: Tensor, wrong: Tensor, ends: tuple[Tensor, Tensor] | None = None
) -> list[Section]:
    """Statistics of the `wrong` elements and of both tensors, and the first and the worst elements.

    All are on the CPU and of one shape, `actual` and `expected` of one dtype, `ends`, those of an enclosure, float64.
    """
    distance = chunked(ulps, actual, expected) if ends is None else chunked(_ulps_outside, actual, *ends)
    one, signs = wrong & (distance == 1), wrong & (actual == 0) & (expected == 0)
    summary = (
        f"{counted(wrong)} elements: {one.count_nonzero()} by one ulp, "
        f"{signs.count_nonzero()} in the sign of zero, at most {distance.where(wrong, 0).max()} ulps"
        f"{'' if ends is None else ' outside'}"
    )
    nan_first = distance.masked_fill(distance < 0, torch.iinfo(distance.dtype).max)
    shown = [("worst", worst_places(nan_first, wrong))]
    if wrong.count_nonzero() > SHOWN:
        shown.insert(0, ("first", _places(wrong.flatten().nonzero()[:SHOWN, 0], wrong.shape)))
    tables = [
        (label, table([_element(tuple(place), actual, expected, distance, ends) for place in places.tolist()]))
        for label, places in shown
    ]
    return [("wrong", [summary]), *totals(actual, expected), *tables]


def worst_places(severity: Tensor, wrong: Tensor) -> Tensor:
    """The coordinates [n, dimensions] of the SHOWN `wrong` elements of largest `severity` >= 0; of equals the first."""
    severity, count = severity.masked_fill(~wrong, -1).flatten(), min(SHOWN, int(wrong.count_nonzero()))
    least = severity.topk(count).values[-1]
    more, equal = (severity > least).nonzero().flatten(), (severity == least).nonzero().flatten()
    more = more[severity[more].argsort(descending=True, stable=True)]
    return _places(torch.cat([more, equal])[:count], wrong.shape)


def _places(index: Tensor, shape: torch.Size) -> Tensor:
    """Coordinates [n, dimensions] of places [n] in the flat order (torch.unravel_index imports sympy: seconds)."""
    coordinates = []
    for size in reversed(shape):
        coordinates.insert(0, index % size)
        index = index // size
    return torch.stack(coordinates, dim=1)


def _counts(x: Tensor) -> str:
    largest = x.where(x.isfinite(), 0).abs().max()
    nans, infs, zeros = (int(found.count_nonzero()) for found in (x.isnan(), x.isinf(), x == 0))
    return f"{nans} NaN, {infs} inf, {zeros} zeros, largest {largest:.6g}"


def _size(actual: Tensor, expected: Tensor) -> str:
    difference, norm, overlap = chunked(_squares, actual, expected).sum(0).tolist()
    if norm == 0:
        return "nothing that is finite and not zero is expected"
    return f"RMS {(difference / norm) ** 0.5:.3g} of the expected RMS; best factor {overlap / norm:.5f}"


def _squares(actual: Tensor, expected: Tensor) -> Tensor:
    """[1, 3]: |a - e|^2, |e|^2 and <a, e> of what is finite in both."""
    a, e = actual.double(), expected.double()
    finite = a.isfinite() & e.isfinite()
    a, e = a.where(finite, 0), e.where(finite, 0)
    return torch.stack([product.sum() for product in ((a - e).square(), e.square(), a * e)])[None]


def _element(place: tuple[int, ...], actual, expected, distance, ends) -> list[str]:
    steps = distance[place].item()
    apart = "NaN against a number" if steps < 0 else f"{steps} ulp{'s' * (steps != 1)}"
    cells = [str(list(place)), *_value(actual[place]), "expected", *_value(expected[place])]
    if ends is not None:
        low, high = (end[place].item() for end in ends)
        cells.append("exactly" if low == high else f"in [{low:.6g}, {high:.6g}]")
    return [*cells, apart]


def _value(x: Tensor) -> list[str]:
    nibbles = 2 * x.element_size()
    return [f"{x.item():.{2 + nibbles}g}", f"0x{bits(x).item() & (16**nibbles - 1):0{nibbles}X}"]


def bits(x: Tensor) -> Tensor:
    """The bits of contiguous floats `x`, as signed integers of their size."""
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def ulps(a: Tensor, b: Tensor) -> Tensor:
    """How many steps of their dtype `a` and `b` are apart, integers; +0 and -0 are 0 apart, and -1 stands for NaN."""
    return (_ordered(a) - _ordered(b)).abs().masked_fill(a.isnan() | b.isnan(), -1)


def _ordered(x: Tensor) -> Tensor:
    """The bits as integers in the order of the values; +0 and -0 are both 0."""
    raw = bits(x).to({2: torch.int32, 4: torch.int64, 8: torch.int64}[x.element_size()])
    magnitude = raw & (2 ** (8 * x.element_size() - 1) - 1)
    return torch.where(raw < 0, -magnitude, magnitude)


def _ulps_outside(actual: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """How far `actual` is from its nearest value in the enclosure, in its own dtype."""
    nearest = torch.minimum(torch.maximum(actual.double().nan_to_num(0), lower), upper)
    return ulps(actual, nearest.to(actual.dtype))
