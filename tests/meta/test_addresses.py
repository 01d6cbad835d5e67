"""Is an address outside of a launch's tensors noticed, wherever it is, and no other?"""

import pytest
import torch
import triton
import triton.language as tl

from ..addresses import checked_addresses


@triton.jit
def _copy(source, target, load_at, store_at, count, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    value = tl.load(source + load_at + lane, mask=lane < count, other=0)
    tl.store(target + store_at + lane, value, mask=lane < count)


def _run(load_at: int, store_at: int, count: int) -> None:
    """Copies `count` of [8] bf16, which are the middle of larger tensors, so that nothing crashes."""
    source, target = torch.zeros(64, dtype=torch.bfloat16)[16:24], torch.zeros(64, dtype=torch.bfloat16)[16:24]
    with checked_addresses():
        _copy[(1,)](source, target, load_at, store_at, count, BLOCK=16)


def test_all_of_a_tensor_may_be_touched_and_masked_lanes_may_be_anywhere():
    _run(0, 0, 8)
    _run(7, 7, 1)


@pytest.mark.parametrize(
    ("load_at", "store_at", "count", "message"),
    [
        (0, 0, 9, "reads 1 of 9 values outside"),
        (-1, 0, 8, "reads 1 of 8 values outside"),
        (8, 0, 2, "reads 2 of 2 values outside"),
        (0, 1, 8, "writes 1 of 8 values outside"),
        (0, -3, 4, "writes 3 of 4 values outside"),
    ],
)
def test_one_element_beside_it_is_noticed(load_at, store_at, count, message):
    with pytest.raises(Exception, match=message):
        _run(load_at, store_at, count)


def test_the_interpreter_is_left_as_it_was():
    from triton.runtime import interpreter

    before = interpreter._interpreter.load, interpreter._interpreter.store, interpreter.GridExecutor.__call__
    _run(0, 0, 8)
    assert before == (interpreter._interpreter.load, interpreter._interpreter.store, interpreter.GridExecutor.__call__)
