"""GEMVs on NVFP4 weights for sm_90, by tensor cores, in Gluon: one row of activations x some weight rows a program.

Weights come through a ring in shared memory into the registers that mma reads its first operand from, and are decoded
there. The second operand has the row of activations in each of its eight columns, so that each column of the sums is
the answer. What this saves is instructions: three a weight, where fma on decoded weights (gemv.py) takes six.

No order of summation depends on how many rows there are or which: a row gives the same bytes alone and in every batch.
The warps of a program share the K of a step, STEP each, and of that each of a quad's four threads has PIECE: 16 bytes
of codes, below two block scales. Any order of K will do, as long as both operands of mma have the same.
Triton's interpreter does not run Gluon.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from .hopper_decode import LACKING, decoded, factors

PIECE, STEP = gl.constexpr(32), gl.constexpr(128)


@gluon.constexpr_function
def bases(rank, dimension, count, unit=1):
    """Of `count` places in one dimension of `rank`, a power of two, `unit` apart: the bases of a linear layout."""
    exponents = range(count.bit_length() - 1)
    return [[(unit << bit) if one == dimension else 0 for one in range(rank)] for bit in exponents]


@gluon.constexpr_function
def weights_layout(rows, warps):
    """[warp, row, t, u, h, s, j] of a step's weights: thread t of a quad has four words, 2 u + h, of each of its rows.

    Codes s and s + 4 of a word (j is 0 and 1) are the pair that instruction 4 u + s takes of it.
    """
    codes = [*bases(7, 6, 2), *bases(7, 5, 4), *bases(7, 4, 2), *bases(7, 3, 2)]
    lanes = [*bases(7, 2, 4), *bases(7, 1, 8)]
    registers = codes + bases(7, 1, rows // 8, 8)
    return gl.DistributedLinearLayout(registers, lanes, bases(7, 0, warps), [], [warps, rows, 4, 2, 2, 4, 2])


@gluon.constexpr_function
def words_layout(rows, warps):
    """[warp, row, t, word] of a step's codes: the words of weights_layout, as memory has them."""
    registers = [*bases(4, 3, 4), *bases(4, 1, rows // 8, 8)]
    lanes = [*bases(4, 2, 4), *bases(4, 1, 8)]
    return gl.DistributedLinearLayout(registers, lanes, bases(4, 0, warps), [], [warps, rows, 4, 4])


@gluon.constexpr_function
def x_layout(warps):
    """[warp, t, k of a piece, column] of a step's activations."""
    lanes = [*bases(4, 1, 4), *bases(4, 3, 8)]
    return gl.DistributedLinearLayout(bases(4, 2, 32), lanes, bases(4, 0, warps), [], [warps, 4, 32, 8])


@gluon.constexpr_function
def scales_layout(rows, warps):
    """[row, block] of a step's block scales, which a thread copies eight of."""
    return gl.BlockedLayout([1, 8], [32 // warps, warps], [warps, 1], [1, 0])


@gluon.constexpr_function
def along(layout, dimension, rank):
    """The layout of one `dimension` of a tensor of `layout`."""
    for other in reversed(range(rank)):
        if other != dimension:
            layout = gl.SliceLayout(other, layout)
    return layout


@gluon.jit
def decode(codes, scales, dtype: gl.constexpr, mma: gl.constexpr):
    """A step's weights * 2^-7 as mma's first operand [WARPS, ROWS, STEP], from shared `codes` and `scales`."""
    WARPS: gl.constexpr = codes.shape[0]
    ROWS: gl.constexpr = codes.shape[1]
    shape: gl.constexpr = [WARPS, ROWS, 4, 2, 2, 4, 2]
    layout: gl.constexpr = weights_layout(ROWS, WARPS)
    words: gl.constexpr = gl.SliceLayout(5, gl.SliceLayout(6, layout))
    codes = codes.load(words_layout(ROWS, WARPS)).reshape([WARPS, ROWS, 4, 2, 2])
    codes = gl.convert_layout(codes, words, assert_trivial=True)
    factor = factors(scales.load(gl.SliceLayout(4, words)), dtype)
    codes, _ = gl.broadcast(codes[:, :, :, :, :, None, None], gl.full(shape, 0, gl.int32, layout))
    factor, _ = gl.broadcast(factor[:, :, :, :, None, None, None], gl.full(shape, 0, dtype, layout))
    weights = decoded(codes, factor, False).permute([0, 1, 3, 5, 4, 2, 6]).reshape([WARPS, ROWS, STEP])
    return gl.convert_layout(weights, gl.DotOperandLayout(0, mma, 2), assert_trivial=True)


@gluon.jit
def spread(x, mma: gl.constexpr):
    """A step's activations [WARPS, 4, PIECE] as mma's second operand [WARPS, STEP, 8], in the order of `decode`."""
    WARPS: gl.constexpr = x.shape[0]
    x, _ = gl.broadcast(x[:, :, :, None], gl.full([WARPS, 4, PIECE, 8], 0, x.dtype, x_layout(WARPS)))
    x = x.reshape([WARPS, 4, 2, 2, 2, 4, 8]).permute([0, 2, 5, 3, 1, 4, 6]).reshape([WARPS, STEP, 8])
    return gl.convert_layout(x, gl.DotOperandLayout(1, mma, 2), assert_trivial=True)


@gluon.jit
def x_places(WARPS: gl.constexpr):
    """[WARPS, 4, PIECE]: which k of a step stands where."""
    layout: gl.constexpr = gl.SliceLayout(3, x_layout(WARPS))
    warp = gl.arange(0, WARPS, along(layout, 0, 3))[:, None, None]
    thread = gl.arange(0, 4, along(layout, 1, 3))[None, :, None]
    return warp * STEP + thread * PIECE + gl.arange(0, PIECE, along(layout, 2, 3))[None, None, :]


@gluon.jit
def word_places(row_words, ROWS: gl.constexpr, WARPS: gl.constexpr):
    """int64 [WARPS, ROWS, 4, 4]: where the words of a step are, from a first row of `row_words` on."""
    layout: gl.constexpr = words_layout(ROWS, WARPS)
    warp = gl.arange(0, WARPS, along(layout, 0, 4))[:, None, None, None]
    row = gl.arange(0, ROWS, along(layout, 1, 4))[None, :, None, None]
    thread = gl.arange(0, 4, along(layout, 2, 4))[None, None, :, None]
    word = gl.arange(0, 4, along(layout, 3, 4))[None, None, None, :]
    return row.to(gl.int64) * row_words + (warp * (STEP // 8) + thread * (PIECE // 8) + word)


@gluon.jit
def scale_places(row_scales, ROWS: gl.constexpr, WARPS: gl.constexpr):
    """int64 [ROWS, blocks]: where the scales of a step are, from a first row of `row_scales` on."""
    layout: gl.constexpr = scales_layout(ROWS, WARPS)
    row = gl.arange(0, ROWS, gl.SliceLayout(1, layout))[:, None]
    return row.to(gl.int64) * row_scales + gl.arange(0, WARPS * STEP // 16, gl.SliceLayout(0, layout))[None, :]


@gluon.jit
def copy_step(rings, pointers, slot, step, steps, WARPS: gl.constexpr):
    """Begins to copy a step of codes and scales to its slot; behind the last step, zeros."""
    codes, scales = rings
    packed, scale = pointers
    async_copy.async_load(codes.index(slot), packed + step * (WARPS * STEP // 8), step < steps)
    async_copy.async_load(scales.index(slot), scale + step * (WARPS * STEP // 16), step < steps)
    async_copy.commit_group()


@gluon.jit
def row_sums(x, pointers, steps, ROWS: gl.constexpr, WARPS: gl.constexpr, STAGES: gl.constexpr):
    """The sums [ROWS, 4], four times the same, over `steps` of K; `pointers` are where codes and scales begin.

    Of STAGES slots one is computed with while the others fill. The barrier is behind a thread's own copies, so that all
    threads' are there, and before the slot of the step before, which all have read by then, is filled again.
    """
    mma: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    words: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [3, 2, 1, 0])
    codes = gl.allocate_shared_memory(gl.int32, [STAGES, WARPS, ROWS, 4, 4], words)
    blocks: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    scales = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, ROWS, WARPS * STEP // 16], blocks)
    acc = gl.zeros([WARPS, ROWS, 8], gl.float32, mma)
    for step in gl.static_range(STAGES - 1):
        copy_step((codes, scales), pointers, step, step, steps, WARPS)
    for step in range(0, steps):
        x_step = gl.load(x + step * (WARPS * STEP))
        async_copy.wait_group(STAGES - 2)
        gl.barrier()
        ahead = step + STAGES - 1
        copy_step((codes, scales), pointers, ahead % STAGES, ahead, steps, WARPS)
        factors = scales.index(step % STAGES).reshape([ROWS, WARPS, 4, 2]).permute((1, 0, 2, 3))
        weights = decode(codes.index(step % STAGES), factors, x_step.dtype, mma)
        acc = mma_v2(weights, spread(x_step, mma), acc)
    async_copy.wait_group(0)  # the sums of warps meet where the ring was
    gl.barrier()
    first, _ = gl.split(acc.reshape([WARPS, ROWS, 4, 2]))
    return gl.sum(first, 0)


@gluon.jit
def store_rows(sums, global_scale, topk_weight, out, WEIGHTED: gl.constexpr):
    """out[n] = sums[n, 0] * global (* topk_weight if WEIGHTED), each product rounded to fp32, then once to `out`."""
    layout: gl.constexpr = sums.type.layout
    n = gl.arange(0, sums.shape[0], gl.SliceLayout(1, layout))[:, None]
    column = gl.arange(0, sums.shape[1], gl.SliceLayout(0, layout))[None, :]
    sums = sums * LACKING * gl.load(global_scale + n)
    if WEIGHTED:
        sums = sums * gl.load(topk_weight)
    n, column = gl.broadcast(n, column)
    gl.store(out + n, sums.to(out.dtype.element_ty), mask=column == 0)


@gluon.jit(do_not_specialize=["k_units", "experts", "rows_per_input"])
def w4a16_hopper_gemv(
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
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    K_UNIT: gl.constexpr,
    WEIGHTED: gl.constexpr,
):
    """What gemv.w4a16_gemv stores, for N of whole blocks; K_UNIT is a step of all warps, STEP each."""
    WARPS: gl.constexpr = gl.num_warps()
    gl.static_assert(K_UNIT == WARPS * STEP)
    tiles = N // BLOCK_N
    route = (gl.program_id(0) // tiles).to(gl.int64)
    expert = gl.load(topk_ids + route).to(gl.int64)
    if (expert >= 0) & (expert < experts):
        n = gl.program_id(0) % tiles * BLOCK_N
        first_row = expert * N + n
        row_words, row_scales = k_units * (K_UNIT // 8), k_units * (K_UNIT // 16)
        pointers = (
            packed + first_row * row_words + word_places(row_words, BLOCK_N, WARPS),
            scale + first_row * row_scales + scale_places(row_scales, BLOCK_N, WARPS),
        )
        x_row = x + route // rows_per_input * (k_units * K_UNIT) + x_places(WARPS)
        sums = row_sums(x_row, pointers, k_units, BLOCK_N, WARPS, STAGES)
        store_rows(sums, global_scale + first_row, topk_weights + route, out + route * N + n, WEIGHTED)
