"""Judges of an output: bit for bit where one answer is right, else inside a derived enclosure. Neither has a tolerance.

Both raise AssertionError with an explanation (see explain.py). `context` is printed with it: any key=value that names
the case, and `repro`, the command that runs it again. Both refuse an expected output of which more than half is exact
zeros as MISTRUSTED, as it would hide most faults, unless `zeros_expected` says that zeros are the point.
"""

import torch
from torch import Tensor

from . import explain
from .bounds import Interval
from .explain import bits

# Hoeffding: independent errors of mean 0 within +-d leave 6 * sqrt(sum d^2) with a probability below 2 * exp(-18).
DEVIATIONS = 6
# For what all elements may share: a tensor core that cuts off half a unit of the final sum for each product and each
# step takes 0.75 * K * 2^-23 of it, 2^-11 at K = 5120.
SHARED_ERROR = 2.0**-9
WORST_SCALES = 4  # rows or columns that are shown


def bitwise(actual: Tensor, expected: Tensor, *, zeros_expected: bool = False, **context: object) -> None:
    """`actual` has the dtype, the shape and the bits of `expected`, both floats; they may be on different devices.

    The sign of zero counts. Any NaN equals any NaN: its sign and payload are the machine's, not the layer's.
    """
    __tracebackhide__ = True
    _check_kind(actual, expected.dtype, expected.shape, context)
    _check_trust(expected, zeros_expected, context)
    actual, expected = _on_host(actual), _on_host(expected)
    wrong = (bits(actual) != bits(expected)) & ~(actual.isnan() & expected.isnan())
    if wrong.any():
        what = f"the output differs from the expected bits in {wrong.sum()} of {wrong.numel()} elements"
        raise AssertionError(explain.report(what, context, actual, expected, wrong))


def bounded(actual: Tensor, interval: Interval, *, zeros_expected: bool = False, **context: object) -> None:
    """`actual` [T, H] has the interval's dtype and shape, lies inside it, and is not scaled as a whole or in part.

    Inside is judged element by element, signs of zero aside; NaN is right where the interval asks for it, and required
    there. An interval of which more than half is open (see Interval) is MISTRUSTED.

    A wide enclosure would let a common error pass, so `actual` is also projected on the expected output e: for the
    whole, each row and each column, <actual, e> / <e, e> must be 1 within 6 * sqrt(sum (d * e)^2) / <e, e> + 2^-9,
    where d is the distance from e to the farther end. The first term takes the elements' errors for independent, each
    at most d; most stay far below d, which adds up worst cases. Elements that are not finite, in `actual` or in the
    interval, do not count here.
    """
    __tracebackhide__ = True
    _check_kind(actual, interval.dtype, interval.expected.shape, context)
    _check_trust(interval.expected, zeros_expected, context)
    lower, upper = _on_host(interval.lower), _on_host(interval.upper)
    expected, actual = _on_host(interval.expected).to(interval.dtype), _on_host(actual)
    open_ = (lower == -torch.inf) & (upper == torch.inf)
    if 2 * open_.sum() > open_.numel():
        what = (
            f"MISTRUSTED: {open_.sum()} of {open_.numel()} elements may overflow on the way, so that anything is right"
        )
        raise AssertionError(explain.report(what, context))

    value = actual.double()
    inside = torch.where(lower.isnan(), value.isnan(), (lower <= value) & (value <= upper)) | open_
    if not inside.all():
        what = f"the output leaves its enclosure in {(~inside).sum()} of {inside.numel()} elements"
        raise AssertionError(explain.report(what, context, actual, expected, ~inside, (lower, upper)))
    scaled = _scaled_parts(value, expected.double(), lower, upper)
    if scaled:
        what = "the output lies inside its enclosure, but parts of it are scaled: " + scaled[0]
        raise AssertionError(explain.report(what, context, actual, expected, value != expected, notes=scaled[1:]))


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()


def _check_kind(actual: Tensor, dtype: torch.dtype, shape: torch.Size, context: dict) -> None:
    __tracebackhide__ = True
    if not isinstance(actual, Tensor):
        raise AssertionError(
            explain.report(f"the output is a {type(actual).__name__}, but should be a tensor", context)
        )
    for name, is_, should in (("dtype", actual.dtype, dtype), ("shape", list(actual.shape), list(shape))):
        if is_ != should:
            raise AssertionError(explain.report(f"the output has {name} {is_}, but should have {should}", context))


def _check_trust(expected: Tensor, zeros_expected: bool, context: dict) -> None:
    __tracebackhide__ = True
    zeros = int((expected == 0).sum())
    if 2 * zeros > expected.numel() and not zeros_expected:
        what = f"MISTRUSTED: {zeros} of {expected.numel()} expected elements are exact zeros; is that the case's point?"
        raise AssertionError(explain.report(what, context))


def _scaled_parts(actual: Tensor, expected: Tensor, lower: Tensor, upper: Tensor) -> list[str]:
    """One line for the whole, and for the worst rows and columns, whose projection on `expected` is too far from 1."""
    counts = actual.isfinite() & expected.isfinite() & lower.isfinite() & upper.isfinite()
    e = torch.where(counts, expected, 0.0)
    error = torch.where(counts, actual - expected, 0.0)
    distance = torch.where(counts, torch.maximum(upper - expected, expected - lower), 0.0)
    lines = []
    for part, dims in (("the whole", (0, 1)), ("row", (1,)), ("column", (0,))):
        energy = e.square().sum(dims)
        scale = (error * e).sum(dims) / energy
        allowed = DEVIATIONS * (distance * e).square().sum(dims).sqrt() / energy + SHARED_ERROR
        excess = (scale.abs() / allowed).nan_to_num(0).flatten()  # 0 / 0: a part of zeros has no scale
        for i in excess.argsort(descending=True)[:WORST_SCALES].tolist():
            if excess[i] > 1:
                name = part if len(dims) == 2 else f"{part} {i}"
                lines.append(
                    f"{name} by {1 + scale.flatten()[i]:.5f}, where 1 +- {allowed.flatten()[i]:.5f} is allowed"
                )
    return lines
