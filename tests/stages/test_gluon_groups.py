"""Are the faults of a pipeline seen on the CPU? Small ones, planted in groups of their own."""

from functools import partial

import pytest
import triton.language as tl

from .gluon_groups import POISON, Barrier, Deadlock, Groups, Memory


def pipeline(order: tuple[int, ...] = (0, 1), late: bool = False) -> tuple[Groups, Memory, Barrier]:
    groups = Groups(order, late)
    barrier = Barrier(groups)
    barrier.init(1)
    return groups, Memory.allocated(tl.uint8, [4], None), barrier


def copy(groups: Groups, memory: Memory, barrier: Barrier) -> None:
    """Fills `memory` with 7, and tells `barrier`."""

    def finish() -> None:
        memory.data.fill(7)
        barrier.arrive()

    groups.copies.append(finish)
    groups.wait()


def read(memory: Memory, barrier: Barrier, phase: int = 0):
    barrier.wait(phase)
    return memory.data.copy()


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)])
@pytest.mark.parametrize(("phase", "value"), [(0, 7), (1, POISON)], ids=["after the copy", "too early"])
def test_who_reads_too_early_reads_poison(phase: int, value: int, order: tuple[int, ...]):
    groups, memory, barrier = pipeline(order, late=True)
    reading, last, found = partial(read, memory, barrier, phase), partial(barrier.wait, 0), []
    groups.run([partial(copy, groups, memory, barrier), lambda: found.append(reading()), last])
    assert (found[0] == value).all()


def test_a_phase_that_never_ends():
    groups, memory, barrier = pipeline()
    with pytest.raises(Deadlock, match="groups 0 wait for ever"):
        groups.run([partial(read, memory, barrier), lambda: None])


def test_groups_that_wait_for_each_other():
    groups, _, first = pipeline()
    second = Barrier(groups)
    second.init(1)

    def after(mine: Barrier, other: Barrier) -> None:
        other.wait(0)
        mine.arrive()

    with pytest.raises(Deadlock, match="groups 0, 1 wait for ever"):
        groups.run([partial(after, first, second), partial(after, second, first)])


def test_copies_that_nobody_waits_for():
    groups, memory, barrier = pipeline(late=True)
    with pytest.raises(AssertionError, match="1 copies were begun that nobody waited for"):
        groups.run([partial(copy, groups, memory, barrier), lambda: None])


def test_more_arrive_than_a_barrier_counts():
    groups, _, barrier = pipeline()
    with pytest.raises(AssertionError, match="2 arrive where 1 are missing"):
        groups.run([partial(barrier.arrive, 2), lambda: None])


def test_an_error_in_one_group_ends_the_others():
    groups, memory, barrier = pipeline()
    with pytest.raises(ZeroDivisionError):
        groups.run([partial(read, memory, barrier), lambda: 1 / 0])


@pytest.mark.parametrize(("order", "turns"), [((0, 1), "000111"), ((1, 0), "111000")])
def test_the_first_in_order_that_need_not_wait_goes_on(order, turns):
    groups, said = Groups(order, late=False), []

    def group(name: str) -> None:
        for _ in range(3):
            said.append(name)
            groups.wait()

    groups.run([partial(group, "0"), partial(group, "1")])
    assert "".join(said) == turns
