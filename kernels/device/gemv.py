"""GEMVs on NVFP4 weights: one row of activations x one block of weight rows a program. Triton device functions.

No order of summation depends on how many rows there are or which: a row gives the same bytes alone and in every batch.
"""

import triton
import triton.language as tl

from .blocks import store_sums
from .decode import e4m3_to_fp16

# fp16 reads a code's bits as value * 2^-14 (see decode.py). The block scale makes up for it: 448 * 2^14 is an fp32.
_E2M1_REBIAS = tl.constexpr(2.0**14)


@triton.jit
def columns(x):
    """The eight columns of `x` [WORDS, 8], in order."""
    WORDS: tl.constexpr = x.shape[0]
    even, odd = tl.split(x.reshape(WORDS, 4, 2))
    x04, x26 = tl.split(even.reshape(WORDS, 2, 2))
    x15, x37 = tl.split(odd.reshape(WORDS, 2, 2))
    x0, x4 = tl.split(x04)
    x2, x6 = tl.split(x26)
    x1, x5 = tl.split(x15)
    x3, x7 = tl.split(x37)
    return x0, x1, x2, x3, x4, x5, x6, x7


@triton.jit
def word_sums(words, x):
    """For every word the sum over its eight codes of x[w, j] * code j * 2^-14, fp32 [N, WORDS].

    `words` is int32 [N, WORDS], `x` of 16 bits [WORDS, 8]. Codes j and j + 4 are decoded at once, in the halves of 32
    bits. The product with a code is exact in fp32, so that fma rounds what two operations would.
    """
    x_columns = columns(x)
    sums = tl.zeros(words.shape, tl.float32)
    for j in tl.static_range(4):
        pair = words >> (4 * j)
        bits = ((pair & 0x00080008) << 12) | ((pair & 0x00070007) << 9)
        low = bits.to(tl.uint16).to(tl.float16, bitcast=True)
        high = (bits >> 16).to(tl.uint16).to(tl.float16, bitcast=True)
        sums = tl.fma(low.to(tl.float32), x_columns[j].to(tl.float32)[None, :], sums)
        sums = tl.fma(high.to(tl.float32), x_columns[j + 4].to(tl.float32)[None, :], sums)
    return sums


@triton.jit
def row_sums(x_row, packed, scale, weight_row, inside, k_units, WORDS: tl.constexpr, K_UNIT: tl.constexpr):
    """sum_k x_row[k] * W[weight_row, k], fp32 [N], without the global scale; `inside` [N] says which rows there are.

    `packed` are int32 words of eight codes each, WORDS of every row a step; K is k_units * K_UNIT. A lane adds up whole
    blocks of 16, scales each, and keeps its sums to itself; the lanes are added behind the loop, once.
    """
    BLOCK_N: tl.constexpr = weight_row.shape[0]
    row_words = k_units * (K_UNIT // 8)
    row_groups = k_units * (K_UNIT // 16)
    word = tl.arange(0, WORDS)
    group = tl.arange(0, WORDS // 2)
    x_tile = x_row + 8 * word[:, None] + tl.arange(0, 8)[None, :]
    packed_tile = packed + weight_row[:, None] * row_words + word[None, :]
    scale_tile = scale + weight_row[:, None] * row_groups + group[None, :]
    acc = tl.zeros((BLOCK_N, WORDS // 2), tl.float32)
    for start in range(0, row_words, WORDS):
        in_k = start + word < row_words
        in_groups = start // 2 + group < row_groups
        words = tl.load(packed_tile, mask=inside[:, None] & in_k[None, :], other=0)
        scales = tl.load(scale_tile, mask=inside[:, None] & in_groups[None, :], other=0.0)
        sums = word_sums(words, tl.load(x_tile, mask=in_k[:, None], other=0.0))
        first, second = tl.split(sums.reshape(BLOCK_N, WORDS // 2, 2))
        acc += (first + second) * (e4m3_to_fp16(scales).to(tl.float32) * _E2M1_REBIAS)
        x_tile += 8 * WORDS
        packed_tile += WORDS
        scale_tile += WORDS // 2
    return tl.sum(acc, axis=1)


@triton.jit(do_not_specialize=["k_units", "experts", "rows_per_input"])
def w4a16_gemv(
    x,
    packed,
    scale,
    global_scale,
    topk_weights,
    topk_ids,
    out,
    N,
    k_units,
    experts,
    rows_per_input,
    BLOCK_N: tl.constexpr,
    WORDS: tl.constexpr,
    K_UNIT: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    """out[route, n] = (sum_k x[route // rows_per_input, k] * W[expert, n, k]) * global (* topk_weight if WEIGHTED).

    One program: one route x BLOCK_N rows of its expert, topk_ids[route]. A route whose expert is outside [0, experts)
    leaves its row alone. Programs of one route are neighbours.
    """
    row_tiles = tl.cdiv(N, BLOCK_N)
    route = (tl.program_id(0) // row_tiles).to(tl.int64)
    expert = tl.load(topk_ids + route).to(tl.int64)
    real = (expert >= 0) & (expert < experts)
    if not real:
        return
    n = tl.program_id(0) % row_tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = n < N
    weight_row = expert * N + n
    x_row = x + route // rows_per_input * (k_units * K_UNIT)
    sums = row_sums(x_row, packed, scale, weight_row, inside, k_units, WORDS, K_UNIT)
    store_sums(sums, global_scale, topk_weights, out, N, route, real, n, inside, weight_row, WEIGHTED)


@triton.jit(do_not_specialize=["N", "k_units"])
def linear_gemv(
    x,
    packed,
    scale,
    global_scale,
    out,
    N,
    k_units,
    BLOCK_N: tl.constexpr,
    WORDS: tl.constexpr,
    K_UNIT: tl.constexpr,
):
    """out[m, n] = (sum_k x[m, k] * W[n, k]) * global[n]. One program: one row of x x BLOCK_N weight rows."""
    row_tiles = tl.cdiv(N, BLOCK_N)
    m = (tl.program_id(0) // row_tiles).to(tl.int64)
    n = tl.program_id(0) % row_tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = n < N
    weight_row = n.to(tl.int64)
    sums = row_sums(x + m * (k_units * K_UNIT), packed, scale, weight_row, inside, k_units, WORDS, K_UNIT)
    store_sums(sums, global_scale, None, out, N, m, m >= 0, n, inside, weight_row, WEIGHTED=False)
