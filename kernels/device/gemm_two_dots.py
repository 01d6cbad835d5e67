"""Grouped W4A16 GEMMs of the older form: out = X @ W^T, two dots a K step, on the even and on the odd k.

The table form is a baseline to measure against; the pair form is the same sum, decoded and loaded more cheaply. Both
multiply the same numbers, up to a power of two, in the same order, so they give the same bits at the same tile. Triton
device functions.
"""

import triton
import triton.language as tl

from .blocks import routes_of, store_sums
from .decode import PAIR_EPILOGUE, dequantize_by_table, dequantize_pair


@triton.jit(do_not_specialize=["k_units", "routes", "rows_per_input"])
def w4a16_table_gemm(
    x,
    packed,
    scale,
    table,
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
):
    """What gemm.w4a16_gemm computes, from a `table` fp32 [16] of the codes' values.

    A scale is loaded for every packed byte, and the activations are loaded twice, with a stride of two.
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

    packed_columns = k_units * (K_UNIT // 2)
    byte = tl.arange(0, BLOCK_KB)
    even_tile = x + row[:, None] * (k_units * K_UNIT) + 2 * byte[None, :]
    packed_tile = packed + weight_row[None, :] * packed_columns + byte[:, None]
    scale_tile = scale + weight_row[None, :] * (k_units * (K_UNIT // 16)) + (byte // 8)[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, packed_columns, BLOCK_KB):
        in_k = start + byte < packed_columns
        in_weights = in_k[:, None] & inside[None, :]
        in_x = real[:, None] & in_k[None, :]
        codes = tl.load(packed_tile, mask=in_weights, other=0)
        factors = tl.load(scale_tile, mask=in_weights, other=0.0)
        x_even = tl.load(even_tile, mask=in_x, other=0.0)
        x_odd = tl.load(even_tile + 1, mask=in_x, other=0.0)
        w_even, w_odd = dequantize_by_table(codes, factors, table, x_even.dtype)
        acc = tl.dot(x_even, w_even, acc, input_precision="ieee")
        acc = tl.dot(x_odd, w_odd, acc, input_precision="ieee")
        even_tile += 2 * BLOCK_KB
        packed_tile += BLOCK_KB
        scale_tile += BLOCK_KB // 8

    route, real = route[:, None], real[:, None]
    n, inside, weight_row = n[None, :], inside[None, :], weight_row[None, :]
    store_sums(acc, global_scale, topk_weights, out, N, route, real, n, inside, weight_row, WEIGHTED)


@triton.jit(do_not_specialize=["k_units", "routes", "rows_per_input"])
def w4a16_pair_gemm(
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
    EVEN_K: tl.constexpr,
):
    """What w4a16_table_gemm computes, to the bit, without its table and its strided loads.

    Weights enter the dots as weight * 2^-7, and the sums are multiplied by 2^7 at the end. Neither changes a bit: a
    power of two moves exponents alone, so every product and every rounded sum is 2^-7 times the table's, as long as
    nothing underflows or overflows. Nothing does under fp16 activations, nor under bf16 ones that are 0 or from 2^-102
    to 2^127 / (2688 K) in magnitude: products are then multiples of 2^-109 * 2^-17, which is fp32's smallest normal
    number, and no sum of the table's passes 2^127; beyond, its sums are infinite where 2^-7 times as much is a number.

    EVEN_K says that BLOCK_KB divides the bytes of a row, so that no load needs to look at k.
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

    K = k_units * K_UNIT
    packed_columns = k_units * (K_UNIT // 2)
    k = tl.arange(0, 2 * BLOCK_KB)
    byte = tl.arange(0, BLOCK_KB)
    x_tile = x + row[:, None] * K + k[None, :]
    packed_tile = packed + weight_row[None, :] * packed_columns + byte[:, None]
    scale_tile = scale + weight_row[None, :] * (k_units * (K_UNIT // 16)) + (byte // 8)[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, packed_columns, BLOCK_KB):
        in_weights = inside[None, :] if EVEN_K else inside[None, :] & (start + byte < packed_columns)[:, None]
        in_x = real[:, None] if EVEN_K else real[:, None] & (2 * start + k < K)[None, :]
        codes = tl.load(packed_tile, mask=in_weights, other=0)
        factors = tl.load(scale_tile, mask=in_weights, other=0.0)
        tokens = tl.load(x_tile, mask=in_x, other=0.0)
        x_even, x_odd = tl.split(tokens.reshape(BLOCK_M, BLOCK_KB, 2))
        w_even, w_odd = dequantize_pair(codes, factors, tokens.dtype)
        acc = tl.dot(x_even, w_even, acc, input_precision="ieee")
        acc = tl.dot(x_odd, w_odd, acc, input_precision="ieee")
        x_tile += 2 * BLOCK_KB
        packed_tile += BLOCK_KB
        scale_tile += BLOCK_KB // 8

    route, real = route[:, None], real[:, None]
    n, inside, weight_row = n[None, :], inside[None, :], weight_row[None, :]
    store_sums(acc * PAIR_EPILOGUE, global_scale, topk_weights, out, N, route, real, n, inside, weight_row, WEIGHTED)
