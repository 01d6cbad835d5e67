"""The text of a failure: what was wrong, case, statistics, first and worst elements, pattern, repro, environment."""

import platform
from collections.abc import Sequence

import torch
from torch import Tensor

SHOWN = 4  # elements at the start, and as many of the worst
PATTERN_SHARE = 0.9  # of the wrong elements that have to share a pattern
PATTERN_LEAST = 4  # wrong elements that make a pattern
TILES = (128, 64, 32, 16)


def report(
    what: str,
    context: dict[str, object],
    actual: Tensor | None = None,
    expected: Tensor | None = None,
    wrong: Tensor | None = None,
    ends: tuple[Tensor, Tensor] | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The text of a failure. With tensors, `wrong` marks the elements to explain; `ends` are those of an enclosure.

    All tensors are on the CPU and of one shape, `actual` and `expected` of one dtype, `ends` float64.
    """
    lines = [what, *(f"  {note}" for note in notes)]
    lines += [f"  {key}={value}" for key, value in context.items() if key != "repro"]
    if wrong is not None:
        near = expected if ends is None else _nearest_end(actual, *ends)
        distance = ulps(actual, near)
        lines += ["statistics:", *_statistics(actual, expected, wrong, distance)]
        lines += _elements(actual, expected, wrong, distance, ends)
        lines += [f"pattern: {pattern}" for pattern in patterns(wrong)]
    if "repro" in context:
        lines.append(f"repro: {context['repro']}")
    lines.append(f"environment: torch {torch.__version__}, Python {platform.python_version()}, {_device()}")
    return "\n".join(lines)


def bits(x: Tensor) -> Tensor:
    """The bits of contiguous floats `x`, as signed integers of their size."""
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def ulps(a: Tensor, b: Tensor) -> Tensor:
    """How many steps of their dtype `a` and `b` are apart, int64; +0 and -0 are 0 apart, and -1 stands for NaN."""
    steps = (_ordered(a) - _ordered(b)).abs()
    return torch.where(a.isnan() | b.isnan(), -1, steps)


def patterns(wrong: Tensor) -> list[str]:
    """What (nearly) all wrong elements of a mask [..., rows, columns] share, in words."""
    if wrong.sum() < PATTERN_LEAST:
        return []
    found = []
    coordinates = wrong.nonzero()
    for axis, name in ((-2, "row"), (-1, "column"))[-wrong.dim() :]:
        index, size = coordinates[:, axis].sort().values, wrong.shape[axis]
        found += _window(index, size, name) or _parity(index, name)
    return found


def _window(index: Tensor, size: int, name: str) -> list[str]:
    """The shortest run of rows or columns that holds all, or else most, of the sorted `index`: at most half of them."""
    for count in (len(index), int(len(index) * PATTERN_SHARE + 0.999)):
        lengths = index[count - 1 :] - index[: len(index) - count + 1]
        first = int(index[lengths.argmin()])
        last = first + int(lengths.min())
        if 2 * (last - first + 1) <= size:
            held = int(((index >= first) & (index <= last)).sum())
            edge = next((f", from a multiple of {tile}" for tile in TILES if first and first % tile == 0), "")
            return [f"{held} of {len(index)} in {_run(first, last, size, name)}{edge}"]
    return []


def _run(first: int, last: int, size: int, name: str) -> str:
    if first == last:
        return f"{name} {first}"
    if last == size - 1:
        half = " (the second half)" if 2 * first == size else ""
        return f"the last {size - first} {name}s, {first} to {last}{half}"
    half = " (the first half)" if first == 0 and 2 * (last + 1) == size else ""
    return f"{name}s {first} to {last}{half}"


def _parity(index: Tensor, name: str) -> list[str]:
    odd = int((index % 2).sum())
    for parity, count in (("odd", odd), ("even", len(index) - odd)):
        if count >= PATTERN_SHARE * len(index):
            return [f"{count} of {len(index)} in {parity} {name}s"]
    return []


def _statistics(actual: Tensor, expected: Tensor, wrong: Tensor, distance: Tensor) -> list[str]:
    a, e = actual.double(), expected.double()
    both = a.isfinite() & e.isfinite()
    a_finite, e_finite = torch.where(both, a, 0.0), torch.where(both, e, 0.0)
    norm = e_finite.norm()
    rms = (a_finite - e_finite).norm() / norm
    signs = wrong & (a == 0) & (e == 0)
    return [
        f"  wrong: {wrong.sum()} of {wrong.numel()}, {(wrong & (distance == 1)).sum()} by one ulp, "
        f"{signs.sum()} in the sign of zero, at most {distance[wrong].max().clamp(min=0)} ulps",
        f"  actual:   {_counts(actual)}",
        f"  expected: {_counts(expected)}",
        f"  RMS of the difference / RMS of expected: {rms:.3g}; scale: {(a_finite * e_finite).sum() / norm**2:.5f}",
    ]


def _counts(x: Tensor) -> str:
    return (
        f"{x.isnan().sum()} NaN, {x.isinf().sum()} inf, {(x == 0).sum()} zeros, max {x.nan_to_num(0).abs().max():.6g}"
    )


def _elements(actual, expected, wrong, distance, ends) -> list[str]:
    places = wrong.nonzero()
    severity = torch.where(distance < 0, distance.max() + 1, distance)[wrong]  # NaN before all numbers
    worst = places[severity.argsort(descending=True, stable=True)]
    lines = []
    for title, chosen in (("first:", places[:SHOWN]), ("worst:", worst[:SHOWN])):
        lines.append(title)
        lines += [_element(tuple(place), actual, expected, distance, ends) for place in chosen.tolist()]
    return lines


def _element(place: tuple[int, ...], actual, expected, distance, ends) -> str:
    apart = "NaN against a number" if distance[place] < 0 else f"{distance[place]} ulps"
    enclosure = f" in [{ends[0][place]:.6g}, {ends[1][place]:.6g}]" if ends else ""
    return f"  {list(place)}: {_value(actual[place])}, expected {_value(expected[place])}{enclosure}, {apart}"


def _value(x: Tensor) -> str:
    nibbles = 2 * x.element_size()
    raw = bits(x).item() & (16**nibbles - 1)
    return f"{x.item():.{2 + nibbles}g} (0x{raw:0{nibbles}X})"


def _nearest_end(actual: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """What `actual` would have to be: its nearest value in the enclosure, in its own dtype."""
    nearest = torch.minimum(torch.maximum(actual.double().nan_to_num(0), lower), upper)
    return nearest.to(actual.dtype)


def _ordered(x: Tensor) -> Tensor:
    """The bits as integers in the order of the values; +0 and -0 are both 0."""
    raw = bits(x).long()
    magnitude = raw & (2 ** (8 * x.element_size() - 1) - 1)
    return torch.where(raw < 0, -magnitude, magnitude)


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
