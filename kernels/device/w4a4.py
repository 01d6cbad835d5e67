"""The grouped W4A4 GEMMs of prefill: NVFP4 x NVFP4. Triton device functions.

As in gemm.py a dot is out^T = W @ X^T, the weights its first operand. Both operands are decoded to fp16, in which every
e2m1 * e4m3 is exact, whatever the dtype of hidden_states; so gate_up does not know that dtype. NATIVE instead hands
codes and scales to the GPU's own FP4 instruction, which has been compiled, and run by the interpreter, but never seen
on hardware. Its scales must be pointers to e4m3: bytes would be read as powers of two (triton-lang/triton#7549).
"""

import triton
import triton.language as tl

from .blocks import add_sums, routes_of, store_sums
from .decode import dequantize
from .pointwise import activate
from .quantize import quantize_blocks


@triton.jit
def load_rows(packed, scale, row, real, start, row_bytes, BYTES: tl.constexpr):
    """(codes [rows, BYTES], block scales [rows, BYTES / 8]) of NVFP4 rows from byte `start` on.

    `row` int64 says which; rows that are not `real` are zeros, and so is what lies beyond a row's `row_bytes`.
    """
    byte = start + tl.arange(0, BYTES)
    block = start // 8 + tl.arange(0, BYTES // 8)
    in_bytes = real[:, None] & (byte < row_bytes)[None, :]
    in_blocks = real[:, None] & (block < row_bytes // 8)[None, :]
    codes = tl.load(packed + row[:, None] * row_bytes + byte[None, :], mask=in_bytes, other=0)
    factors = tl.load(scale + row[:, None] * (row_bytes // 8) + block[None, :], mask=in_blocks, other=0.0)
    return codes, factors


@triton.jit
def add_products(
    acc,
    weights,
    weight_scales,
    weight_row,
    inside,
    x,
    x_scale,
    row,
    real,
    start,
    row_bytes,
    BYTES: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """`acc` [weight rows, rows of x] + the products of 2 * BYTES of K from byte `start` on."""
    codes, factors = load_rows(x, x_scale, row, real, start, row_bytes, BYTES)
    weight_codes, weight_factors = load_rows(weights, weight_scales, weight_row, inside, start, row_bytes, BYTES)
    if NATIVE:
        tl.static_assert(factors.dtype == tl.float8e4nv and weight_factors.dtype == tl.float8e4nv)
        return tl.dot_scaled(weight_codes, weight_factors, "e2m1", codes.T, factors, "e2m1", acc)
    tokens = dequantize(codes, factors, tl.float16, NAN=True).T
    return tl.dot(dequantize(weight_codes, weight_factors, tl.float16, NAN=True), tokens, acc, input_precision="ieee")


@triton.jit(do_not_specialize=["k_units", "routes", "rows_per_input", "activation_alpha", "activation_limit"])
def w4a4_gate_up(
    x,
    x_scale,
    packed,
    scale,
    alpha,
    stored,
    block_routes,
    block_expert,
    out,
    out_scale,
    N,
    k_units,
    routes,
    rows_per_input,
    activation_alpha,
    activation_limit,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_KB: tl.constexpr,
    K_UNIT: tl.constexpr,
    NATIVE: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """out[route, :] and out_scale[route, :], of N columns: f(gate) * up in NVFP4, with `stored` fp32 [1].

    gate[n] = (sum_k x[route // rows_per_input, k] * W[expert, n, k]) * alpha[expert, n], and up[n] the same of weight
    row N + n. What is quantized is fp32: there is no 16-bit step between. One program: one block of BLOCK_M routes, all
    of one expert, x BLOCK_N of the N columns, a multiple of 16, with as many weight rows of either half, 2 * BLOCK_KB
    of K a step. K is k_units * K_UNIT.
    """
    column_tiles = tl.cdiv(N, BLOCK_N)
    block = (tl.program_id(0) // column_tiles).to(tl.int64)
    expert = tl.load(block_expert + block).to(tl.int64)
    if expert < 0:  # the grid is an upper bound; this block was not needed
        return
    route, real, row = routes_of(block, block_routes, routes, rows_per_input, BLOCK_M)
    first = tl.program_id(0) % column_tiles * BLOCK_N
    gate_and_up = tl.arange(0, 2 * BLOCK_N)  # the row of gate, then the row of up, for each column
    n = first + gate_and_up // 2
    inside = n < N
    weight_row = (expert * 2 + gate_and_up % 2) * N + n

    row_bytes = k_units * (K_UNIT // 2)
    acc = tl.zeros((2 * BLOCK_N, BLOCK_M), tl.float32)
    for start in range(0, row_bytes, BLOCK_KB):
        acc = add_products(
            acc, packed, scale, weight_row, inside, x, x_scale, row, real, start, row_bytes, BLOCK_KB, NATIVE
        )

    acc *= tl.load(alpha + weight_row, mask=inside, other=0.0)[:, None]
    gate, up = tl.split(acc.T.reshape(BLOCK_M, BLOCK_N, 2))
    h = activate(gate, up, activation_alpha, activation_limit, ACTIVATION)
    codes, scales = quantize_blocks(h, tl.load(stored))
    route = route.to(tl.int64)
    byte = first // 2 + tl.arange(0, BLOCK_N // 2)
    tl.store(out + route[:, None] * (N // 2) + byte[None, :], codes, mask=real[:, None] & (byte < N // 2)[None, :])
    place = first // 16 + tl.arange(0, BLOCK_N // 16)
    scale_tile = out_scale + route[:, None] * (N // 16) + place[None, :]
    tl.store(scale_tile, scales, mask=real[:, None] & (place < N // 16)[None, :])


@triton.jit(do_not_specialize=["blocks", "k_units", "routes", "rows_per_output"])
def w4a4_down(
    x,
    x_scale,
    packed,
    scale,
    alpha,
    topk_weights,
    block_routes,
    block_expert,
    out,
    N,
    blocks,
    k_units,
    routes,
    rows_per_output,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_KB: tl.constexpr,
    K_UNIT: tl.constexpr,
    NATIVE: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ATOMIC: tl.constexpr,
    PERSISTENT: tl.constexpr,
):
    """out[route, n] = (sum_k x[route, k] * W[expert, n, k]) * alpha[expert, n] (* topk_weight if WEIGHTED).

    ATOMIC adds it to out[route // rows_per_output, n] instead, and rounds each sum to the dtype of `out`. A tile is one
    of `blocks` blocks of BLOCK_M routes, all of one expert, x BLOCK_N weight rows, 2 * BLOCK_KB of K a step. K is
    k_units * K_UNIT. PERSISTENT: any number of programs, in which each takes every so many-th tile; else one a tile.
    """
    row_tiles = tl.cdiv(N, BLOCK_N)
    row_bytes = k_units * (K_UNIT // 2)
    first = tl.program_id(0)
    end, step = (blocks * row_tiles, tl.num_programs(0)) if PERSISTENT else (first + 1, 1)
    for tile in range(first, end, step):
        block = (tile // row_tiles).to(tl.int64)
        expert = tl.load(block_expert + block).to(tl.int64)
        if expert >= 0:  # `blocks` is an upper bound; the others were not needed
            route, real, row = routes_of(block, block_routes, routes, 1, BLOCK_M)
            n = tile % row_tiles * BLOCK_N + tl.arange(0, BLOCK_N)
            inside = n < N
            weight_row = expert * N + n

            acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
            for start in range(0, row_bytes, BLOCK_KB):
                acc = add_products(
                    acc, packed, scale, weight_row, inside, x, x_scale, row, real, start, row_bytes, BLOCK_KB, NATIVE
                )

            route, real = route[None, :], real[None, :]
            n, inside, weight_row = n[:, None], inside[:, None], weight_row[:, None]
            if ATOMIC:
                token = route // rows_per_output
                add_sums(acc, alpha, topk_weights, out, N, route, token, real, n, inside, weight_row, WEIGHTED)
            else:
                store_sums(acc, alpha, topk_weights, out, N, route, real, n, inside, weight_row, WEIGHTED)
