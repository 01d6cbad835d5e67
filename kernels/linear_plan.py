"""Which launches make an NVFP4 linear layer: a pure function of GPU, sizes and options, like plan.py's for experts."""

from dataclasses import dataclass, replace

from ..contract.checks import choice, whole
from ..contract.gpus import Gpu, architecture
from ..contract.kernel import DTYPES
from .decode import gemv_constants
from .launch import Launch, declare
from .releases import check_target
from .remembered import remembered
from .tiles import Tile, matrix_instruction
from .tuning import RAGGED_BLOCK_KB

SPLITS = ("auto", 1, 2)

# Measured on an H200 for (N, K) of (4096, 4096), (14336, 4096), (4096, 14336), (1024, 4096) and (2048, 272), M of 1 to
# 4096, Triton 3.8.0. A GEMV decodes every weight once per row, a GEMM once per BLOCK_M rows.
GEMV_ROWS = 4  # 0.85 to 2.5 times as fast as the best GEMM with 4 rows, 0.5 to 2.2 with 8
SMALL_BLOCK_ROWS = 16  # up to so many rows the block has 16, above 64: at 24 rows 64 is the faster or as fast
FEW_TILES = 192  # two parts of K are up to 1.9 times as fast with 128 tiles, 0.85 to 1.2 with 224, and slower with more
LEAST_SPLIT_K = 1024  # of 4096 two parts pay, of 272 they do not; in between nothing is measured

SUM_BLOCK = 512


@dataclass(frozen=True)
class LinearPlan:
    """How x [M, K] of `dtype` times W [N, K] runs, for any number of rows M but zero: its launches, and why these.

    `split_k` parts of K have programs of their own; two parts are added by a launch of their own.
    """

    n: int
    k: int
    dtype: str
    split_k: int
    launches: tuple[Launch, ...]
    reason: str

    def launch(self, stage: str) -> Launch | None:
        """The launch of `stage` ("gemv", "gemm" or "sum_splits"), None where this plan has none."""
        return next((launch for launch in self.launches if launch.stage == stage), None)


@remembered
def plan_linear(
    gpu: Gpu, m: int, n: int, k: int, *, triton: str = "3.8.0", dtype: str = "bf16", split_k: int | str = "auto"
) -> LinearPlan:
    """The plan for `m` rows of `k` through `n` weight rows on `gpu`, under that `triton` release.

    `dtype` is "bf16" or "fp16". `split_k` of 1 or 2 asks for the GEMM with so many parts of K; "auto" chooses, and for
    few rows takes the GEMV. Zero rows have no launches. Raises TypeError for a size that is no int, ValueError for
    other options, for impossible sizes and for a GPU that `triton` cannot compile for.
    """
    check_target(gpu, triton)
    choice("dtype", dtype, DTYPES)
    choice("split_k", split_k, SPLITS)
    _check_sizes(m, n, k)
    if m == 0:
        return LinearPlan(n, k, dtype, 1, (), "no rows: nothing to launch")
    if split_k == "auto" and m <= GEMV_ROWS:
        return LinearPlan(n, k, dtype, 1, (_gemv(gpu, dtype, k),), f"{m} rows, {gpu.name}: GEMV")
    tile = _tile(m, k)
    tiles = -(-m // tile.block_m) * -(-n // tile.block_n)
    if split_k == "auto":
        split_k = 2 if tiles < FEW_TILES and k >= LEAST_SPLIT_K else 1
    launches = (_gemm(gpu, dtype, tile, k, split_k), *([_sum(dtype)] if split_k == 2 else []))
    reason = f"{m} rows, {tiles} tiles, {gpu.name}: block {tile.block_m}, split_k {split_k}"
    return LinearPlan(n, k, dtype, split_k, launches, reason)


def _check_sizes(m: int, n: int, k: int) -> None:
    whole("m", m, least=0)
    whole("n", n, least=1)
    if whole("k", k) < 16 or k % 16:
        raise ValueError(f"k is {k}, but should be a positive multiple of 16")


def _tile(m: int, k: int) -> Tile:
    tile = Tile(16 if m <= SMALL_BLOCK_ROWS else 64)
    return replace(tile, block_kb=RAGGED_BLOCK_KB) if k % 32 else tile


def _scale(gpu: Gpu) -> str:
    return "*fp8e4nv" if architecture(gpu).native_e4m3 else "*u8"


def _gemv(gpu: Gpu, dtype: str, k: int) -> Launch:
    return declare(
        "gemv",
        "gemv.linear_gemv",
        f"x: *{dtype}, packed: *i32, scale: {_scale(gpu)}, global_scale: *fp32, out: *{dtype}, N: i32, k_units: i32",
        "",
        gemv_constants(k),
    )


def _gemm(gpu: Gpu, dtype: str, tile: Tile, k: int, split_k: int) -> Launch:
    partial = split_k > 1
    sizes = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_KB": tile.block_kb}
    return declare(
        "gemm",
        "linear.linear_gemm",
        f"x: *{dtype}, packed: *u8, scale: {_scale(gpu)}, global_scale: *fp32, out: *{'fp32' if partial else dtype}, "
        "M: i32, N: i32, k_units: i32",
        "",
        {**sizes, "K_UNIT": 16 if k % 32 else 32, "PARTIAL": partial},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        instruction=matrix_instruction(tile, architecture(gpu)),
    )


def _sum(dtype: str) -> Launch:
    arguments = f"partial: *fp32, global_scale: *fp32, out: *{dtype}, M: i32, N: i32, splits: i32"
    return declare("sum_splits", "linear.sum_splits", arguments, "", {"BLOCK": SUM_BLOCK})
