"""A K that no tile divides: every kernel reads rows of exactly K elements and K / 16 scales, and nothing behind them.

Seen in ROCm/aiter#2900: scales were written in rows of their valid length and read in rows of the padded one, right for
the first 32 rows alone; and padding of 1 added to the sums.
"""

import pytest

from nvfp4_suite.kernels.decode import NAME as DECODE
from nvfp4_suite.reference import judge

from ..behind_rows import RAGGED_K, among_poison
from ..engine import INTERPRETED
from .edges import UNITS, shape_of
from .gate_up import W4A16, gate_up

N = 32  # half a tile of weight rows


def _sizes(kernel: str) -> list[tuple[int, int]]:
    """(K, N): of a kernel whose own launches take no ragged K those that they take."""
    if kernel not in UNITS:
        return [(k, N) for k in RAGGED_K]
    shape = shape_of("whole steps", kernel)
    return [(shape.hidden, 2 * shape.intermediate)]


RUNS = [(kernel, *sizes) for kernel in W4A16 for sizes in _sizes(kernel)]


@pytest.mark.fault("ROCm/aiter#2900")
@pytest.mark.parametrize(("kernel", "k", "n"), RUNS)
def test_nothing_behind_a_row_is_read(kernel: str, k: int, n: int, device):
    """33 rows of x, which is one more than a group of rows of tiled scales; decode has each for itself."""
    m = 3 if kernel == DECODE and INTERPRETED else 33
    given = among_poison(m, n, k, "bf16", device)
    out = gate_up(kernel, *vars(given.layer).values())
    judge.bitwise(out[0::2, 0::2], given.expected, kernel=kernel, k=k)
