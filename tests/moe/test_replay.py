"""Launches that are started again, with the pointers they had, read what lies there now: a graph's replay, in small.

What runs between two launches, on the host or by torch, is not started again: a layer that copies its inputs on the way
shows as one that reads old data. So would one whose output torch zeroes before atomics add to it; a real graph has that
step, too (tests/launch/test_graph_routing.py).
"""

import pytest

from nvfp4_suite.contract.kernel import Kernel
from nvfp4_suite.reference import judge

from ..engine import INTERPRETED, kernels_here
from ..starts import at_starts
from .rerouted import STEPS, ids_of, static

EVERY = range(len(STEPS))
LAUNCHES_ALONE = [kernel for kernel in kernels_here() if kernel.promise.repeatable]
FEW = (2, 6, 7)  # of each kind one, and one valid token after eight


@pytest.mark.fault("vllm-project/vllm#52383")
@pytest.mark.parametrize("kernel", LAUNCHES_ALONE, ids=lambda kernel: kernel.name)
def test_launches_started_again_read_what_is_there_now(kernel: Kernel, device, monkeypatch):
    given = static(kernel, device)
    prepared = kernel.prepare(given.inputs.banks)
    kernel.run(prepared, *given.arguments)
    with monkeypatch.context() as patch:
        launches = _recorded(patch)
        out = kernel.run(prepared, *given.arguments)
    for step in FEW if INTERPRETED else EVERY:
        given.change(step)
        for start, arguments, named in launches:
            start(*arguments, **named)
        expected = kernel.run(prepared, *given.arguments)
        judge.bitwise(out, expected, step=STEPS[step], kernel=kernel.name, zeros_expected=True)


def _recorded(patch) -> list[tuple]:
    """Every launch that any module of kernels/ starts from now on, in order, as (start, arguments, named arguments)."""
    launches = []

    def record(start, *arguments, **named):
        launches.append((start, arguments, named))
        return start(*arguments, **named)

    at_starts(patch, record)
    return launches


def test_the_steps_are_those_of_the_report():
    kinds = {(kind, int((ids_of(step) >= 0).any(1).sum())) for step, (kind, _) in enumerate(STEPS)}
    assert len(STEPS) == 12 and {kind for kind, _ in kinds} == {"others", "one", "dropped"}
    for step, (kind, valid) in enumerate(STEPS):
        ids = ids_of(step)
        assert (ids[valid:] == -1).all() and not ((ids == 0) | (ids == 1)).any()
        assert ((ids[:valid] == -1).any()) == (kind == "dropped")
