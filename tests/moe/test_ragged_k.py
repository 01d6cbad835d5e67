"""A K that no tile divides: every kernel reads rows of exactly K elements and K / 16 scales, and nothing behind them.

Seen in ROCm/aiter#2900: scales were written in rows of their valid length and read in rows of the padded one, right for
the first 32 rows alone; and padding of 1 added to the sums.
"""

import pytest

from nvfp4_suite.kernels import hopper
from nvfp4_suite.kernels.decode import NAME as DECODE
from nvfp4_suite.reference import judge

from ..behind_rows import RAGGED_K, among_poison
from ..engine import INTERPRETED
from .gate_up import W4A16, gate_up

N = 32  # half a tile of weight rows

# Kernels that have no launches of their own for a K of that list, and what they have some for: 3 and 5 times 64.
WHOLE_K = {"prefill_w4a16_words": (192, N), hopper.NAME: (320, 128)}
RUNS = [(kernel, k, N) for kernel in W4A16 if kernel not in WHOLE_K for k in RAGGED_K]
RUNS += [(kernel, *WHOLE_K[kernel]) for kernel in W4A16 if kernel in WHOLE_K]


@pytest.mark.fault("ROCm/aiter#2900")
@pytest.mark.parametrize(("kernel", "k", "n"), RUNS)
def test_nothing_behind_a_row_is_read(kernel: str, k: int, n: int, device):
    """33 rows of x, which is one more than a group of rows of tiled scales; decode has each for itself."""
    m = 3 if kernel == DECODE and INTERPRETED else 33
    given = among_poison(m, n, k, "bf16", device)
    out = gate_up(kernel, *vars(given.layer).values())
    judge.bitwise(out[0::2, 0::2], given.expected, kernel=kernel, k=k)
