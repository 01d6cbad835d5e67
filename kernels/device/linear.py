"""The dense W4A16 GEMM: the byte form's decode and dot without routing, over all of K or over parts of it, and the sum
of the parts. Triton device functions.
"""

import triton
import triton.language as tl

from .blocks import store_sums
from .decode import dequantize


@triton.jit(do_not_specialize=["M", "N", "k_units"])
def linear_gemm(
    x,
    packed,
    scale,
    global_scale,
    out,
    M,
    N,
    k_units,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_KB: tl.constexpr,
    K_UNIT: tl.constexpr,
    PARTIAL: tl.constexpr,
):
    """out[m, n] = (sum_k x[m, k] * W[n, k]) * global[n]; if PARTIAL, out[part, m, n] = the part's sum, fp32.

    One program: BLOCK_M rows of x x BLOCK_N weight rows x one part of K, whole steps of 2 * BLOCK_KB; a part may be
    empty. There are as many parts as the grid's second axis has programs. K is k_units * K_UNIT (see gemm.py).
    """
    row_tiles = tl.cdiv(N, BLOCK_N)
    m = (tl.program_id(0) // row_tiles).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) % row_tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    real, inside = m < M, n < N
    weight_row = n.to(tl.int64)

    K = k_units * K_UNIT
    packed_columns = k_units * (K_UNIT // 2)
    scale_columns = k_units * (K_UNIT // 16)
    part_bytes = tl.cdiv(tl.cdiv(packed_columns, BLOCK_KB), tl.num_programs(1)) * BLOCK_KB
    first = tl.program_id(1) * part_bytes
    k = tl.arange(0, 2 * BLOCK_KB)
    byte = tl.arange(0, BLOCK_KB)
    group = tl.arange(0, BLOCK_KB // 8)
    x_tile = x + m[None, :] * K + 2 * first + k[:, None]
    packed_tile = packed + weight_row[:, None] * packed_columns + first + byte[None, :]
    scale_tile = scale + weight_row[:, None] * scale_columns + first // 8 + group[None, :]
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for start in range(first, tl.minimum(first + part_bytes, packed_columns), BLOCK_KB):
        codes = tl.load(packed_tile, mask=inside[:, None] & (start + byte < packed_columns)[None, :], other=0)
        scales = tl.load(scale_tile, mask=inside[:, None] & (start // 8 + group < scale_columns)[None, :], other=0.0)
        rows = tl.load(x_tile, mask=real[None, :] & (2 * start + k < K)[:, None], other=0.0)
        acc = tl.dot(dequantize(codes, scales, rows.dtype), rows, acc, input_precision="ieee")
        x_tile += 2 * BLOCK_KB
        packed_tile += BLOCK_KB
        scale_tile += BLOCK_KB // 8

    m, real = m[None, :], real[None, :]
    n, inside, weight_row = n[:, None], inside[:, None], weight_row[:, None]
    if PARTIAL:
        part = tl.program_id(1).to(tl.int64)
        tl.store(out + (part * M + m) * N + n, acc, mask=real & inside)
    else:
        store_sums(acc, global_scale, None, out, N, m, real, n, inside, weight_row, WEIGHTED=False)


@triton.jit(do_not_specialize=["M", "N", "splits"])
def sum_splits(partial, global_scale, out, M, N, splits, BLOCK: tl.constexpr):
    """out[m, n] = (partial[0, m, n] + partial[1, m, n] + ...) * global[n], added in this order in fp32."""
    m = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = n < N
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(0, splits):
        total += tl.load(partial + (part * M + m) * N + n, mask=inside, other=0.0)
    store_sums(total, global_scale, None, out, N, m, m < M, n, inside, n, WEIGHTED=False)
