"""Faults on purpose, a test each, and tests that are right beside them.

test_planted.py runs them in a copy of the tree, as tests/planted/test_planted.py, and must find each in its own test.
"""

import pytest
import torch
import triton
import triton.language as tl

from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import experts
from nvfp4_suite.kernels.registry import KERNELS
from nvfp4_suite.kernels.variants import DEFAULT
from nvfp4_suite.reference import judge

from ..launch import test_graph_routing
from ..moe import test_repeatable
from ..moe.subject import context_of, expected_of, inputs_of, run_kernel
from ..poison import poisoned_allocations

KERNEL = KERNELS[DEFAULT]
CASE = Case(LayerShape(4, 2, 48, 80), 5)


@triton.jit
def _write(out, offset, value):
    tl.store(out + offset, value)


@triton.jit
def _wait(flag, times):
    """Until somebody sets the flag; or, lest the GPU be lost, for some minutes."""
    waited = 0
    while (tl.load(flag, volatile=True) == 0) & (waited < times):
        waited += 1
    tl.store(flag, waited)


def test_a_write_just_outside(device):
    with poisoned_allocations():
        out = torch.empty(64, device=device)
        _write[(1,)](out, 64, 1.0)


def test_a_write_far_outside(device):
    """Nothing waits for it: the error comes to light with the next call, which would be the next test's."""
    _write[(1,)](torch.zeros(64, device=device), 2**42, 1.0)


def test_an_unwritten_row(device, monkeypatch):
    by_columns = experts.by_columns

    def lazy(launch, *, out, **arguments):
        by_columns(launch, out=out[:-1] if launch.stage == "sum_routes" else out, **arguments)

    monkeypatch.setattr(experts, "by_columns", lazy)
    actual = run_kernel(KERNEL, inputs_of(CASE), device, **CASE.options)
    judge.bitwise(actual, expected_of(CASE, "w4a16"), **context_of(CASE))


def test_atomics_declared_repeatable(device, monkeypatch):
    """The sum over the routes, in bf16 and as they come."""
    by_columns = experts.by_columns

    def atomic(launch, *, out, **arguments):
        if launch.stage != "sum_routes":
            return by_columns(launch, out=out, **arguments)
        routes = arguments["route_out"]
        tokens = torch.arange(len(routes), device=routes.device) // arguments["top_k"]
        out.zero_().index_add_(0, tokens, routes)

    monkeypatch.setattr(experts, "by_columns", atomic)
    test_repeatable.test_many_runs_beside_others_have_one_digest(KERNEL, 8, device)


def test_a_stale_graph_input(device, monkeypatch):
    """A copy that an eager run made is what a capture reads, and so every replay."""
    plain, copies = experts.plain, {}

    def stale(tensor):
        key = tensor.shape, tensor.dtype
        if torch.cuda.is_current_stream_capturing():
            return copies[key]
        copies[key] = tensor.clone()
        return plain(tensor)

    monkeypatch.setattr(experts, "plain", stale)
    test_graph_routing.test_every_replay_gives_the_bytes_of_an_eager_run(KERNEL, device)


def test_out_of_memory(device):
    """What the card has, but not this worker alone."""
    _, total = torch.cuda.mem_get_info()
    torch.empty(total * 8 // 10, dtype=torch.uint8, device=device)


@pytest.mark.timeout(8)
def test_a_kernel_that_hangs(device):
    flag = torch.zeros(1, dtype=torch.int32, device=device)
    _wait[(1,)](flag, 3 * 10**8)
    torch.cuda.synchronize()


@pytest.mark.parametrize("number", range(8))
def test_right(number: int, device):
    assert torch.full((64,), number, device=device).sum().item() == 64 * number
