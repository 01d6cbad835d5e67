"""What a session must test: every case, by every kernel that promises it on the GPU at hand. Read from the tables."""

from ..cases.layers import ALL
from ..contract.case import TIERS, Case
from ..contract.kernel import Promise

Pair = tuple[str, str]  # a case's id and a kernel's name


def within(tier: str, case: Case) -> bool:
    """Whether a session of `tier` runs `case`: each tier has those before it."""
    return TIERS.index(case.tier) <= TIERS.index(tier)


def due(capability: tuple[int, int], tier: str) -> set[Pair]:
    """The (case, kernel) that a session of `tier` owes on a GPU of that `capability`. Imports torch and triton."""
    from ..kernels.registry import KERNELS

    def promised(promise: Promise, case: Case) -> bool:
        there = promise.capabilities is None or capability in promise.capabilities
        return there and promise.takes(case) and within(tier, case)

    kernels = KERNELS.values()
    return {(case.id, kernel.name) for case in ALL for kernel in kernels if promised(kernel.promise, case)}
