"""Every published shape at one token and at a thousand: all rows of every kernel lie in their enclosures."""

import pytest

from nvfp4_suite.contract.case import Case, Inputs
from nvfp4_suite.contract.kernel import Kernel
from nvfp4_suite.kernels.decode import NAME as DECODE
from nvfp4_suite.kernels.registry import KERNELS
from nvfp4_suite.kernels.variants import DEFAULT
from nvfp4_suite.reference.bounds import Interval

from ..engine import INTERPRETED, runs_here
from ..held import held
from ..moe.subject import inputs_on, run_kernel
from .layer import SHAPES, activation, enclosed, first_tokens, judged, rows_of

TOKENS = (1, 3) if INTERPRETED else (1, 3, 16, 64, 100, 128, 150, 512, 1024)


def _runs(kernel: Kernel, tokens: int) -> bool:
    """The default always, decode where it is meant for, both blocks of the kernels that are kept for comparison."""
    if kernel.name == DECODE:
        return tokens <= 64
    return kernel.name == DEFAULT or (tokens in (16, 1024) and runs_here(kernel))


def _case(name: str) -> Case:
    """The layer with as many tokens as any run has."""
    return Case(SHAPES[name], max(TOKENS), inputs="random", activation=activation(name))


RUNS = [  # shape by shape, because the banks of one are made once
    pytest.param(name, tokens, kernel, id=f"{name}-t{tokens}-{kernel.name}", marks=pytest.mark.together(name))
    for name in SHAPES
    for tokens in TOKENS
    for kernel in KERNELS.values()
    if kernel.promise.takes(_case(name)) and _runs(kernel, tokens)
]


@held(maxsize=1)
def _inputs(name: str, device: str) -> Inputs:
    return inputs_on(_case(name), device)


@held(maxsize=1)
def _interval(name: str, rounding: str, device: str) -> Interval:
    return enclosed(_inputs(name, device), _case(name), rounding)


@pytest.mark.parametrize(("name", "tokens", "kernel"), RUNS)
def test_every_row_is_within_its_bound(name: str, tokens: int, kernel: Kernel, device, record_property):
    case, inputs = _case(name), first_tokens(_inputs(name, device), tokens)
    actual = run_kernel(kernel, inputs, device, **case.options)
    interval = rows_of(_interval(name, kernel.promise.rounding, device), slice(tokens))
    ratio = judged(actual, interval, case=case.id, tokens=tokens, kernel=kernel.name)
    record_property("error_to_bound", f"{name} | {kernel.name} | {tokens} | {ratio:.2f}")
