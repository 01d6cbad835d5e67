"""Right first: nothing is timed whose output is wrong, differs from run to run, or is another one when replayed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ..ci.recording import digest
from .contenders import Contender
from .stages import Output
from .timing import Replay


class Wrong(Exception):
    """Why a contender gets no time."""


@dataclass(frozen=True)
class Checked:
    """What is known of a right output: its relative RMS error on the sample, None where it has none, and its digest."""

    error: float | None
    digest: str
    out: Output


def check(contender: Contender) -> Checked:
    """Runs it twice on poisoned allocations, and judges what it wrote. Raises Wrong, which says what was wrong."""
    try:
        with poisoned():
            first, second = contender.function(), contender.function()
    except Exception as error:  # it does not compile, or asks for more than the GPU has; the others are timed
        raise Wrong(f"{contender.label}: {type(error).__name__}: {error}") from error
    error = _judged(contender, first)
    if contender.same and not _equal(first, second):
        raise Wrong(f"{contender.label}: two runs on the same inputs give other bytes, but should give the same")
    if not contender.same:
        _judged(contender, second)
    return Checked(error, _digest(contender, first), first)


def check_replay(contender: Contender, replay: Replay, checked: Checked) -> None:
    """What is timed writes what was checked. Raises Wrong where it does not."""
    again = replay.again()
    if contender.same and not _equal(again, checked.out):
        raise Wrong(f"{contender.label}: the captured graph gives other bytes than the run that was judged")
    if not contender.same:
        _judged(contender, again)


@contextmanager
def poisoned() -> Iterator[None]:
    """Within it torch fills what it allocates with NaN, integers with the largest: what a kernel leaves unwritten."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")  # fills what is allocated; use_deterministic_algorithms takes seconds
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def _judged(contender: Contender, out: Output) -> float | None:
    try:
        return contender.check(out)
    except AssertionError as error:
        raise Wrong(f"{contender.label}: {error}") from error


def _equal(one: Output, other: Output) -> bool:
    """Byte for byte."""
    return all(torch.equal(_bytes(a), _bytes(b)) for a, b in zip(_tensors(one), _tensors(other), strict=True))


def _tensors(out: Output) -> tuple[Tensor, ...]:
    return out if isinstance(out, tuple) else (out,)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int16) if tensor.is_floating_point() and tensor.itemsize == 2 else tensor


def _digest(contender: Contender, out: Output) -> str:
    """Of the whole output, as in golden/exact.json, or of the sampled rows."""
    return digest(contender.sampled(out) if contender.sampled else _tensors(out)[0])
