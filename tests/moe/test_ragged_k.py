"""A K that no tile divides: every kernel reads rows of exactly K elements and K / 16 scales, and nothing behind them.

Seen in ROCm/aiter#2900: scales were written in rows of their valid length and read in rows of the padded one, right for
the first 32 rows alone; and padding of 1 added to the sums.
"""

import pytest

from nvfp4_suite.kernels.decode import NAME as DECODE
from nvfp4_suite.reference import judge

from ..behind_rows import RAGGED_K, among_poison
from ..engine import INTERPRETED
from .gate_up import W4A16, gate_up

N = 32  # half a tile of weight rows

# Words of four scales are loaded where K is a multiple of 64; for a K of this list that kernel has the default's plan.
WORDS = "prefill_w4a16_words"
RUNS = [(kernel, k) for kernel in W4A16 if kernel != WORDS for k in RAGGED_K] + [(WORDS, 192)]


@pytest.mark.fault("ROCm/aiter#2900")
@pytest.mark.parametrize(("kernel", "k"), RUNS)
def test_nothing_behind_a_row_is_read(kernel: str, k: int, device):
    """33 rows of x, which is one more than a group of rows of tiled scales; decode has each for itself."""
    m = 3 if kernel == DECODE and INTERPRETED else 33
    given = among_poison(m, N, k, "bf16", device)
    out = gate_up(kernel, *vars(given.layer).values())
    judge.bitwise(out[0::2, 0::2], given.expected, kernel=kernel, k=k)
