"""What the warp-specialized W4A4 GEMMs share: a ring of stages in shared memory. Gluon device functions.

One group of warps fills the ring by cp.async, one empties it by the GPU's FP4 instruction and hands the sums of each
tile, in shared memory, to a third, which scales and stores them while the next tile is multiplied. As in w4a4.py a tile
is out^T = W @ X^T: ROWS weight rows x BLOCK_M routes, all of one expert. K is a multiple of 64 here, so that four block
scales of a row are an aligned word.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mbarrier

WARPS = gl.constexpr(4)  # in each of the three groups
STAGES = gl.constexpr(4)  # of the ring


@builtin
def multiply_blocks(a, a_scale, b, b_scale, acc, _semantic=None):
    """acc + a @ b of e2m1 pairs with e4m3 scales. Gluon has no name for this on mma.sync; its compiler knows it."""
    assert a_scale.dtype == b_scale.dtype == gl.float8e4nv  # bytes would be taken for powers of two
    options = {"fast_math": False, "lhs_k_pack": True, "rhs_k_pack": True, "out_dtype": gl.float32}
    sums = _semantic.dot_scaled(a, a_scale, "e2m1", b, b_scale, "e2m1", acc, **options)
    return gl.tensor(sums.handle, acc.type)


@gluon.constexpr_function
def scale_layout(rows, blocks, least_rows, lanes, warps):
    """How the FP4 instruction wants `blocks` block scales of `rows` rows: all of a row in each thread.

    `lanes` and `warps` say which row each of their bits adds; `least_rows` are the rows that they cover together.
    """
    registers = [[0, 1 << bit] for bit in range(blocks.bit_length() - 1)]
    registers += [[least_rows << bit, 0] for bit in range((rows // least_rows).bit_length() - 1)]
    return gl.DistributedLinearLayout(
        registers, [[row, 0] for row in lanes], [[row, 0] for row in warps], [], [rows, blocks]
    )


@gluon.constexpr_function
def ring_layout(row_bytes):
    """Rows of `row_bytes` in pieces of 16, which swap places so that eight rows are read at once."""
    pieces = row_bytes // 16
    return gl.SwizzledSharedLayout(16, max(8 // pieces, 1), pieces, [1, 0])


@gluon.constexpr_function
def columns_of(rows, gated):
    """Columns of the output that a tile of so many weight rows makes: of gate_up each has two, gate's and up's."""
    return rows // 2 if gated else rows


@gluon.jit
def tile_rows(tile, expert, place, N, ROWS: gl.constexpr, GATED: gl.constexpr):
    """(column of the output, weight row) of each `place` of a tile: GATED, gate's row, then up's, for each column."""
    COLUMNS: gl.constexpr = columns_of(ROWS, GATED)
    first = tile % gl.cdiv(N, COLUMNS) * COLUMNS
    if GATED:
        n = first + place // 2
        row = (expert * 2 + place % 2) * N + n
    else:
        n = first + place
        row = expert * N + n
    return n, row


@gluon.jit
def allocate_ring(scales: gl.constexpr, BLOCK_M: gl.constexpr, ROWS: gl.constexpr, BLOCK_KB: gl.constexpr):
    """Weights, their scales, activations, theirs, each of STAGES; then a barrier for a full stage and for an empty."""
    codes: gl.constexpr = ring_layout(BLOCK_KB)
    factors: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    weights = gl.allocate_shared_memory(gl.uint8, [STAGES, ROWS, BLOCK_KB], codes)
    weight_scales = gl.allocate_shared_memory(scales, [STAGES, ROWS, BLOCK_KB // 8], factors)
    tokens = gl.allocate_shared_memory(gl.uint8, [STAGES, BLOCK_M, BLOCK_KB], codes)
    token_scales = gl.allocate_shared_memory(scales, [STAGES, BLOCK_M, BLOCK_KB // 8], factors)
    full, empty = mbarrier.allocate_mbarrier(STAGES), mbarrier.allocate_mbarrier(STAGES)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), 32 * WARPS)  # each thread's own copies arrive
        mbarrier.init(empty.index(stage), 1)
    return weights, weight_scales, tokens, token_scales, full, empty


@gluon.jit
def allocate_sums(BLOCK_M: gl.constexpr, ROWS: gl.constexpr):
    """The sums of a tile, as they are handed over; then a barrier for full sums and for empty."""
    sums = gl.allocate_shared_memory(gl.float32, [ROWS, BLOCK_M], gl.SwizzledSharedLayout(1, 1, 1, [0, 1]))
    full, empty = mbarrier.allocate_mbarrier(), mbarrier.allocate_mbarrier()
    mbarrier.init(full, 1)
    mbarrier.init(empty, 1)
    return sums, full, empty


@gluon.jit
def load_tiles(
    inputs,
    lists,
    ring,
    sizes,
    rows_per_input,
    BLOCK_M: gl.constexpr,
    ROWS: gl.constexpr,
    BLOCK_KB: gl.constexpr,
    K_UNIT: gl.constexpr,
    GATED: gl.constexpr,
):
    """Fills the ring: packed weights and their scales, packed activations and theirs; zeros beyond the end of a row."""
    x, x_scale, packed, scale = inputs
    block_routes, block_expert = lists
    N, blocks, k_units, routes = sizes
    weights, weight_scales, tokens, token_scales, full, empty = ring
    wide: gl.constexpr = gl.BlockedLayout([1, 16], [512 // BLOCK_KB, BLOCK_KB // 16], [WARPS, 1], [1, 0])
    narrow: gl.constexpr = gl.BlockedLayout([1, 4], [1024 // BLOCK_KB, BLOCK_KB // 32], [WARPS, 1], [1, 0])
    tiles_of_block = gl.cdiv(N, columns_of(ROWS, GATED))
    row_bytes = k_units * (K_UNIT // 2)
    byte = gl.arange(0, BLOCK_KB, gl.SliceLayout(0, wide))[None, :]
    place = gl.arange(0, BLOCK_KB // 8, gl.SliceLayout(0, narrow))[None, :]
    step = 0
    for tile in range(gl.program_id(0), blocks * tiles_of_block, gl.num_programs(0)):
        block = tile // tiles_of_block
        expert = gl.load(block_expert + block).to(gl.int64)
        if expert >= 0:
            n, row = tile_rows(tile, expert, gl.arange(0, ROWS, gl.SliceLayout(1, wide)), N, ROWS, GATED)
            n, w = n[:, None], packed + row[:, None] * row_bytes + byte
            n_scale, row = tile_rows(tile, expert, gl.arange(0, ROWS, gl.SliceLayout(1, narrow)), N, ROWS, GATED)
            n_scale, ws = n_scale[:, None], scale + row[:, None] * (row_bytes // 8) + place
            slot = block_routes + block.to(gl.int64) * BLOCK_M
            route = gl.load(slot + gl.arange(0, BLOCK_M, gl.SliceLayout(1, wide)))[:, None]
            route_scale = gl.load(slot + gl.arange(0, BLOCK_M, gl.SliceLayout(1, narrow)))[:, None]
            t = x + (route // rows_per_input).to(gl.int64) * row_bytes + byte
            ts = x_scale + (route_scale // rows_per_input).to(gl.int64) * (row_bytes // 8) + place
            for start in range(0, row_bytes, BLOCK_KB):
                stage = step % STAGES
                mbarrier.wait(empty.index(stage), (step // STAGES & 1) ^ 1)
                in_bytes, in_blocks = byte < row_bytes - start, place < (row_bytes - start) // 8
                async_copy.async_load(weights.index(stage), w + start, (n < N) & in_bytes)
                async_copy.async_load(weight_scales.index(stage), ws + start // 8, (n_scale < N) & in_blocks)
                async_copy.async_load(tokens.index(stage), t + start, (route < routes) & in_bytes)
                async_copy.async_load(token_scales.index(stage), ts + start // 8, (route_scale < routes) & in_blocks)
                async_copy.mbarrier_arrive(full.index(stage), increment_count=False)
                step += 1


@gluon.jit
def multiply_tiles(
    lists,
    ring,
    handed,
    sizes,
    BLOCK_M: gl.constexpr,
    ROWS: gl.constexpr,
    BLOCK_KB: gl.constexpr,
    K_UNIT: gl.constexpr,
    GATED: gl.constexpr,
):
    """Empties the ring: the sums of each tile, handed over in shared memory."""
    _, block_expert = lists
    weights, weight_scales, tokens, token_scales, full, empty = ring
    N, blocks, k_units, _ = sizes
    mma: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1], [16, 8])
    of_weights: gl.constexpr = scale_layout(ROWS, BLOCK_KB // 8, 64, [8, 0, 1, 2, 4], [16, 32])
    of_tokens: gl.constexpr = scale_layout(BLOCK_M, BLOCK_KB // 8, 8, [0, 0, 1, 2, 4], [0, 0])
    sums, sums_full, sums_empty = handed
    tiles_of_block = gl.cdiv(N, columns_of(ROWS, GATED))
    row_bytes = k_units * (K_UNIT // 2)
    step, done = 0, 0
    for tile in range(gl.program_id(0), blocks * tiles_of_block, gl.num_programs(0)):
        if gl.load(block_expert + tile // tiles_of_block) >= 0:
            acc = gl.zeros([ROWS, BLOCK_M], gl.float32, mma)
            for _start in range(0, row_bytes, BLOCK_KB):
                stage = step % STAGES
                mbarrier.wait(full.index(stage), step // STAGES & 1)
                w = weights.index(stage).load(gl.DotOperandLayout(0, mma, 4))
                t = tokens.index(stage).permute((1, 0)).load(gl.DotOperandLayout(1, mma, 4))
                w_scale = weight_scales.index(stage).load(of_weights)
                t_scale = token_scales.index(stage).load(of_tokens)
                mbarrier.arrive(empty.index(stage))
                acc = multiply_blocks(w, w_scale, t, t_scale, acc)
                step += 1
            mbarrier.wait(sums_empty, (done & 1) ^ 1)
            sums.store(acc)
            mbarrier.arrive(sums_full)
            done += 1
