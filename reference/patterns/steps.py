"""Which part of K a GEMM's output lacks, has twice or mixes up, found from its operands."""

from collections.abc import Iterator

import torch
from torch import Tensor

from .difference import Difference

LOOKED_AT = 16  # rows that choose among the explanations; the whole output has to agree with the best
STEPS = (16, 32, 64)  # a kernel's step over K is some whole blocks of the format
LEFT = 0.25  # of the difference: what an explanation may leave of it

Explanation = tuple[str, Tensor, Tensor]  # words, and the change as x[:, k] @ weight.T: k [n] and weight [N, n]


def k_steps(d: Difference) -> list[str]:
    """A step of K that is missing or counts twice, or even and odd k mixed up, if it explains the whole difference."""
    if d.operands is None:
        return []
    x, weight = (operand.double() for operand in d.operands)
    error = (d.actual.double() - d.expected.double()).nan_to_num(0, 0, 0)
    rows = error.square().sum(1).topk(min(LOOKED_AT, len(error))).indices
    words, k, change = min(_explanations(weight), key=lambda one: _left(error[rows], x[rows], *one[1:]))
    return [words] if _left(error, x, k, change) <= LEFT else []


def _left(error: Tensor, x: Tensor, k: Tensor, change: Tensor) -> float:
    """The share of the norm of `error` that x[:, k] @ change.T leaves."""
    left = ((error - x[:, k] @ change.T).norm() / error.norm()).item()
    return left if left == left else torch.inf  # operands with NaN explain nothing


def _explanations(weight: Tensor) -> Iterator[Explanation]:
    k = torch.arange(weight.shape[1])
    if len(k) % 2 == 0:
        yield "even and odd k are swapped (the nibbles of a byte)", k, weight[:, k ^ 1] - weight
    for start, name in enumerate(("even", "odd")):
        yield f"all {name} k are missing (one nibble of each byte)", k[start::2], -weight[:, start::2]
        yield f"all {name} k count twice (one nibble of each byte)", k[start::2], weight[:, start::2]
    for first, last, name in _steps(len(k)):
        step = k[first : last + 1]
        yield f"{name} is missing", step, -weight[:, step]
        yield f"{name} counts twice", step, weight[:, step]


def _steps(size: int) -> Iterator[tuple[int, int, str]]:
    """The first and the last k of every step, and its name; a ragged last step counts with its own size."""
    seen = {(0, size - 1)}  # a product of one step
    for step in STEPS:
        for first in range(0, size, step):
            last = min(first + step, size) - 1
            if (first, last) not in seen:
                seen.add((first, last))
                which = "the last K step" if last == size - 1 else f"K step {first // step}"
                yield first, last, f"{which} of {last - first + 1}, k {first} to {last},"
