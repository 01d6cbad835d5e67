"""Judges of an output: bit for bit where one answer is right, else inside a derived enclosure. None has a tolerance.

Each raises AssertionError with an explanation; README.md beside this file shows one of each. Where single elements are
wrong, the error's attribute `wrong` says which: bool, of the output's shape. What they share:

`routing`: (topk_ids [T, top_k], number of experts), for an output whose rows are the T tokens, or the T * top_k routes
in that order: the explanation then names experts and slots. `operands`: (x [R, K], weight [N, K]), global scale
included, of the GEMM whose output is judged: the explanation then names a step of K. `context`: any key=value that
names the case, and `repro`, the command that runs it again; `context_of` gives these for a Case.

All refuse an expected output of which more than half is exact zeros as MISTRUSTED, as it would hide most faults, unless
`zeros_expected` says that zeros are the point. What the caller, not the kernel, got wrong is a TypeError or ValueError.
"""

import torch
from torch import Tensor

from ..contract.case import Case, topk_ids
from . import code_report, explain, quantize
from .bounds import Interval
from .chunks import chunked
from .codes import Values, Verdict
from .explain import Section, bits, counted
from .formats import BLOCK, check_dtype, unpack
from .patterns.difference import Difference
from .patterns.table import find
from .projections import scaled_parts

Routing = tuple[Tensor, int]
Operands = tuple[Tensor, Tensor]


def context_of(case: Case, session: str = "tests") -> dict[str, object]:
    """A judge's context for an output of `case`, whose rows are its tokens, that the nox `session` produced."""
    routing = (topk_ids(case), case.shape.experts)
    return {"case": case.id, "repro": f"nox -s {session} -- --case {case.id}", "routing": routing}


def bitwise(
    actual: Tensor,
    expected: Tensor,
    *,
    zeros_expected: bool = False,
    routing: Routing | None = None,
    operands: Operands | None = None,
    **context: object,
) -> None:
    """`actual` has the dtype, the shape and the bits of `expected`, both floats; they may be on different devices.

    The sign of zero counts. Any NaN equals any NaN: its sign and payload are the machine's, not the layer's.
    """
    __tracebackhide__ = True
    ids, operands = _ids_of_rows(routing, expected.shape), _checked_operands(operands, expected.shape)
    _check_kind("the output", actual, expected.dtype, expected.shape, context)
    _check_finite(expected, context)
    _check_zeros("expected elements are exact zeros", expected == 0, zeros_expected, context)
    actual, expected = _on_host(actual), _on_host(expected)
    wrong = (bits(actual) != bits(expected)) & ~(actual.isnan() & expected.isnan())
    if wrong.any():
        what = f"the output differs from the expected bits in {counted(wrong)} elements"
        found = find(Difference(actual, expected, wrong, ids, operands=operands))
        _fail(what, context, *explain.difference(actual, expected, wrong), ("pattern", found), wrong=wrong)


def bounded(
    actual: Tensor,
    interval: Interval,
    *,
    zeros_expected: bool = False,
    routing: Routing | None = None,
    operands: Operands | None = None,
    **context: object,
) -> None:
    """`actual` [T, H] has the interval's dtype and shape, lies inside it, and is not scaled as a whole or in part.

    Inside is judged element by element, signs of zero aside; NaN is right where the interval asks for it, and required
    there. An interval of which more than half is open (see Interval) is MISTRUSTED.

    A wide enclosure would let a common error pass. So the whole, every row and every column must not be scaled either,
    nor, if the interval has `routes`, what a slot or an expert contributes to the output; see projections.py.
    """
    __tracebackhide__ = True
    ids, operands = _ids_of_rows(routing, interval.expected.shape), _checked_operands(operands, interval.expected.shape)
    _check_kind("the output", actual, interval.dtype, interval.expected.shape, context)
    actual, lower, upper, exact = map(_on_host, (actual, interval.lower, interval.upper, interval.expected))
    _check_finite(exact, context)
    _check_zeros("expected elements are exact zeros", exact == 0, zeros_expected, context)
    _check_zeros("enclosures hold 0", _holds_zero(lower, upper), zeros_expected, context)
    anything = (lower == -torch.inf) & (upper == torch.inf)
    _check_share("elements may overflow on the way, so that anything is right", anything, context)
    routes, named = _contributions(interval)
    inside = chunked(_inside, actual, lower, upper) | anything
    scaled = scaled_parts(actual, lower, upper, exact, routes, named)
    if inside.all() and not scaled:
        return
    expected = exact.to(actual.dtype)
    if inside.all():
        what, wrong = "the output lies inside its enclosure, but parts of it are scaled", actual != expected
        sections = explain.totals(actual, expected)
    else:
        wrong = ~inside
        what = f"the output leaves its enclosure in {counted(wrong)} elements"
        sections = explain.difference(actual, expected, wrong, (lower, upper))
    found = find(Difference(actual, expected, wrong, ids if named is None else named, routes, operands))
    _fail(what, context, *sections, ("scaled", scaled), ("pattern", found), wrong=None if inside.all() else wrong)


def boundary(
    packed: Tensor,
    scale: Tensor,
    lower: Tensor,
    upper: Tensor,
    global_scale: Tensor,
    *,
    recipe: str = "vllm",
    zeros_expected: bool = False,
    routing: Routing | None = None,
    **context: object,
) -> None:
    """A quantized [R, K]: `packed` uint8 [R, K/2] and `scale` uint8 [R, K/16] are what `recipe` makes of the values.

    The values are known to lie in `lower`..`upper`, float64 [R, K] (NaN in both: NaN; -inf to inf: anything, also NaN),
    and `global_scale` is float32, one number or one per row, in the form of the recipe's producer (see quantize.py).
    Every block scale must be one that the recipe gives for some values within the ends, and every code one that it
    gives for its value under the scale that the kernel chose. With lower == upper these are the exact bytes.

    MISTRUSTED also if more than half of the codes could be another.
    """
    __tracebackhide__ = True
    values, ids = _values(lower, upper, global_scale, recipe), _ids_of_rows(routing, lower.shape)
    rows, k = lower.shape
    _check_kind("packed", packed, torch.uint8, torch.Size([rows, k // 2]), context)
    _check_kind("scale", scale, torch.uint8, torch.Size([rows, k // BLOCK]), context)
    scale, codes = _on_host(scale), unpack(_on_host(packed)).unflatten(1, (-1, BLOCK))
    verdict = Verdict.of(values, scale, codes)
    if verdict.wrong_scales.any() or verdict.wrong_codes.any():
        wrong = f"{counted(verdict.wrong_scales)} block scales and {counted(verdict.wrong_codes)} codes"
        sections = code_report.sections(values, scale, codes, verdict, ids)
        elements = (verdict.wrong_codes | verdict.wrong_scales.unsqueeze(-1)).flatten(1)
        _fail(f"no values within the enclosure give {wrong}", context, *sections, wrong=elements)
    _check_zeros(
        "expected codes are exact zeros", (verdict.first_code | verdict.last_code) & 7 == 0, zeros_expected, context
    )
    _check_share("codes have more than one right answer", verdict.uncertain, context)


def _fail(what: str, context: dict, *sections: Section, wrong: Tensor | None = None) -> None:
    __tracebackhide__ = True
    error = AssertionError(explain.report(what, context, sections))
    if wrong is not None:
        error.wrong = wrong
    raise error


def _on_host(tensor: Tensor) -> Tensor:
    return torch.atleast_1d(tensor.detach().cpu().contiguous())


def _inside(actual: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """[T, H], actual of the output's dtype: within the ends, or NaN where they are."""
    value = actual.double()
    return ((lower <= value) & (value <= upper)) | (lower.isnan() & value.isnan())


def _contributions(interval: Interval) -> tuple[Tensor | None, Tensor | None]:
    """(routes, ids) on the CPU; the id of a slot that contributes nothing is -1, as it may be no expert's."""
    if interval.routes is None:
        return None, None
    routes = _on_host(interval.routes)
    return routes, _on_host(interval.topk_ids).long().masked_fill(~chunked(lambda some: some.any(2), routes), -1)


def _ids_of_rows(routing: Routing | None, shape: torch.Size) -> Tensor | None:
    """[rows, slots]: the experts of each row, -1 where an id names none."""
    if routing is None:
        return None
    ids, experts = _on_host(routing[0]).long(), routing[1]
    if len(shape) != 2 or shape[0] not in (len(ids), ids.numel()):
        raise ValueError(f"routing is that of {list(ids.shape)} routes, but the output has shape {list(shape)}")
    ids = ids.masked_fill((ids < 0) | (ids >= experts), -1)
    return ids if len(ids) == shape[0] else ids.view(-1, 1)


def _checked_operands(operands: Operands | None, shape: torch.Size) -> Operands | None:
    if operands is None:
        return None
    x, weight = map(_on_host, operands)
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1] or (len(x), len(weight)) != tuple(shape):
        shapes = f"{list(x.shape)} and {list(weight.shape)}"
        raise ValueError(f"operands have shapes {shapes}, but should be [R, K] and [N, K] for an output {list(shape)}")
    return x, weight


def _values(lower: Tensor, upper: Tensor, global_scale: Tensor, recipe: str) -> Values:
    check_dtype("lower", lower, torch.float64)
    check_dtype("upper", upper, torch.float64)
    check_dtype("global_scale", global_scale, torch.float32)
    if recipe not in quantize.RECIPES:
        raise ValueError(f"recipe is {recipe!r}, but should be one of {', '.join(quantize.RECIPES)}")
    if lower.dim() != 2 or lower.shape[1] % BLOCK or upper.shape != lower.shape:
        shapes = f"{list(lower.shape)} and {list(upper.shape)}"
        raise ValueError(f"lower and upper have shapes {shapes}, but should be [R, K], K a multiple of {BLOCK}")
    if global_scale.numel() not in (1, len(lower)):
        shape = list(global_scale.shape)
        raise ValueError(f"global_scale has shape {shape}, but should be one number, or one for each row")
    if not ((lower <= upper) | (lower.isnan() & upper.isnan())).all():
        raise ValueError("lower is above upper, or one of them alone is NaN, but they should be ends of an enclosure")
    return Values.of(*map(_on_host, (lower, upper, global_scale)), quantize.RECIPES[recipe])


def _check_kind(name: str, actual: Tensor, dtype: torch.dtype, shape: torch.Size, context: dict) -> None:
    __tracebackhide__ = True
    if not isinstance(actual, Tensor):
        _fail(f"{name} is a {type(actual).__name__}, but should be a tensor", context)
    for what, is_, should in (("dtype", actual.dtype, dtype), ("shape", list(actual.shape), list(shape))):
        if is_ != should:
            _fail(f"{name} has {what} {is_}, but should have {should}", context)


def _check_zeros(what: str, zero: Tensor, zeros_expected: bool, context: dict) -> None:
    __tracebackhide__ = True
    if not zeros_expected:
        _check_share(f"{what}; is that the case's point?", zero, context)


def _check_finite(expected: Tensor, context: dict) -> None:
    """A kernel that writes nothing into poisoned memory would give NaN as well."""
    __tracebackhide__ = True
    _check_share("expected elements are not finite", ~expected.isfinite(), context)


def _holds_zero(lower: Tensor, upper: Tensor) -> Tensor:
    return (lower <= 0) & (upper >= 0) & ((lower != -torch.inf) | (upper != torch.inf))


def _check_share(what: str, blind: Tensor, context: dict) -> None:
    """Fails if more than half of the elements are `blind`: they would hide a fault."""
    __tracebackhide__ = True
    if 2 * int(blind.count_nonzero()) > blind.numel():
        _fail(f"MISTRUSTED: {counted(blind)} {what}", context)
