"""The grouped W4A16 GEMM of prefill: out^T = W @ X^T, one dot per K step. Triton device functions.

The decoded weights are the dot's first operand, which wgmma reads from registers, and the token block is its N.
"""

import triton
import triton.language as tl

from .blocks import routes_of, store_sums
from .decode import dequantize, scales_of_words


@triton.jit(do_not_specialize=["k_units", "routes", "rows_per_input"])
def w4a16_gemm(
    x,
    packed,
    scale,
    global_scale,
    topk_weights,
    block_routes,
    block_expert,
    out,
    N,
    k_units,
    routes,
    rows_per_input,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_KB: tl.constexpr,
    K_UNIT: tl.constexpr,
    WEIGHTED: tl.constexpr,
    SCALE_WORDS: tl.constexpr = False,
):
    """out[route, n] = (sum_k x[route // rows_per_input, k] * W[expert, n, k]) * global (* topk_weight if WEIGHTED).

    One program: one block of BLOCK_M routes, all of one expert, x BLOCK_N weight rows; 2 * BLOCK_KB of K a step.
    K is k_units * K_UNIT, so that the distance of rows is known to be a multiple of K_UNIT (64, 32, or 16 for a ragged
    K). Programs that share a block's activations are neighbours, and the blocks of one expert follow each other.

    SCALE_WORDS reads four block scales at once, as an int32: cp.async, which fills a pipeline, copies no less than 4
    bytes. It needs a K_UNIT of 64, a BLOCK_KB of 32 and scales at a multiple of 4 bytes.
    """
    row_tiles = tl.cdiv(N, BLOCK_N)
    block = (tl.program_id(0) // row_tiles).to(tl.int64)
    expert = tl.load(block_expert + block).to(tl.int64)
    if expert < 0:  # the grid is an upper bound; this block was not needed
        return
    route, real, row = routes_of(block, block_routes, routes, rows_per_input, BLOCK_M)
    n = tl.program_id(0) % row_tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = n < N
    weight_row = expert * N + n

    GROUP_KB: tl.constexpr = 32 if SCALE_WORDS else 8  # bytes of packed weights that one load of scales is for
    scales = scale.to(tl.pointer_type(tl.int32), bitcast=True) if SCALE_WORDS else scale
    K = k_units * K_UNIT
    packed_columns = k_units * (K_UNIT // 2)
    scale_columns = k_units * (K_UNIT // 2 // GROUP_KB)
    k = tl.arange(0, 2 * BLOCK_KB)
    byte = tl.arange(0, BLOCK_KB)
    group = tl.arange(0, BLOCK_KB // GROUP_KB)
    x_tile = x + row[None, :] * K + k[:, None]
    packed_tile = packed + weight_row[:, None] * packed_columns + byte[None, :]
    scale_tile = scales + weight_row[:, None] * scale_columns + group[None, :]
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for start in range(0, packed_columns, BLOCK_KB):
        codes = tl.load(packed_tile, mask=inside[:, None] & (start + byte < packed_columns)[None, :], other=0)
        in_scales = inside[:, None] & (start // GROUP_KB + group < scale_columns)[None, :]
        factors = tl.load(scale_tile, mask=in_scales, other=0.0)
        if SCALE_WORDS:
            factors = scales_of_words(factors, scale.dtype.element_ty)
        tokens = tl.load(x_tile, mask=real[None, :] & (2 * start + k < K)[:, None], other=0.0)
        acc = tl.dot(dequantize(codes, factors, tokens.dtype), tokens, acc, input_precision="ieee")
        x_tile += 2 * BLOCK_KB
        packed_tile += BLOCK_KB
        scale_tile += BLOCK_KB // GROUP_KB

    route, real = route[None, :], real[None, :]
    n, inside, weight_row = n[:, None], inside[:, None], weight_row[:, None]
    store_sums(acc, global_scale, topk_weights, out, N, route, real, n, inside, weight_row, WEIGHTED)
