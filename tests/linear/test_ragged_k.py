"""A K that no tile divides, and any number of weight rows: the linear layer reads nothing beside a row.

Seen in ROCm/aiter#2900: scales were written in rows of their valid length and read in rows of the padded one.
"""

from itertools import product

import pytest

from nvfp4_suite.kernels import linear
from nvfp4_suite.kernels.linear_plan import plan_linear
from nvfp4_suite.reference import judge

from ..addresses import checked_addresses
from ..behind_rows import RAGGED_K, among_poison
from ..engine import on_gpu
from ..moe.gate_up import CARD
from ..poison import poisoned_allocations

ROWS = (1, 17, 65, 127)
GEMM, GEMV = 33, 2  # rows of x: one more than a group of rows of tiled scales, and few enough for the GEMV

# The interpreter takes each K and each N: those of a diagonal, and the report's own 8 x 144.
SIZES = [(1, 16), (17, 48), (65, 80), (127, 144), (8, 144), (1, 2064), *on_gpu(list(product(ROWS, RAGGED_K)))]


@pytest.mark.fault("ROCm/aiter#2900")
@pytest.mark.parametrize(("m", "split_k"), [(GEMV, "auto"), (GEMM, 1), (GEMM, 2)])
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_nothing_behind_a_row_is_read(n: int, k: int, m: int, split_k, device):
    given = among_poison(m, n, k, "bf16", device)
    plan = plan_linear(CARD, m, n, k, split_k=split_k)
    assert (plan.launch("gemv") is not None) == (m == GEMV)
    with poisoned_allocations(), checked_addresses():
        out = linear.run(plan, *vars(given.layer).values()).cpu()
    judge.bitwise(out[0::2, 0::2], given.expected, plan=plan.reason)
