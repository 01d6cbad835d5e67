"""The W4A4 GEMMs for sm_120 and 121, warp-specialized and persistent, in Gluon. Device functions.

They have been compiled, but never seen on hardware, and Triton's interpreter does not run Gluon. w4a4_ring.py says how
the groups of warps work together; here are the kernels, and what their third group makes of the sums: by the functions
of w4a4.py, which Gluon compiles as Triton does.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mbarrier

from .pointwise import activate
from .quantize import quantize_blocks
from .w4a4_ring import WARPS, allocate_ring, allocate_sums, columns_of, load_tiles, multiply_tiles, tile_rows


@gluon.jit
def take_sums(handed, done, alpha, row, inside, layout: gl.constexpr):
    """The sums of the tile [BLOCK_M, ROWS], times alpha of their weight rows, once they are there."""
    sums, full, empty = handed
    factor = gl.load(alpha + row, mask=inside, other=0.0)
    mbarrier.wait(full, done & 1)
    found = sums.permute((1, 0)).load(layout)
    mbarrier.arrive(empty)
    return found * factor[None, :]


@gluon.jit
def store_rows(values, out, block_routes, block, first, columns, routes):
    """out[route, first:] = `values` [BLOCK_M, C] for the routes of a block; a row of `out` has so many `columns`."""
    layout: gl.constexpr = values.type.layout
    BLOCK_M: gl.constexpr = values.shape[0]
    slot = block.to(gl.int64) * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, layout))
    route = gl.load(block_routes + slot)
    column = first + gl.arange(0, values.shape[1], gl.SliceLayout(0, layout))
    place = out + route.to(gl.int64)[:, None] * columns + column[None, :]
    gl.store(place, values, mask=(route < routes)[:, None] & (column < columns)[None, :])


@gluon.jit
def store_activated(
    factors,
    lists,
    outputs,
    handed,
    sizes,
    limits,
    BLOCK_M: gl.constexpr,
    ROWS: gl.constexpr,
    ACTIVATION: gl.constexpr,
):
    """Takes each tile's sums: their activation, quantized, as w4a4.w4a4_gate_up does it."""
    layout: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [WARPS, 1], [1, 0])
    COLUMNS: gl.constexpr = columns_of(ROWS, True)
    alpha, stored = factors
    block_routes, block_expert = lists
    out, out_scale = outputs
    activation_alpha, activation_limit = limits
    N, blocks, _, routes = sizes
    tiles_of_block = gl.cdiv(N, COLUMNS)
    done = 0
    for tile in range(gl.program_id(0), blocks * tiles_of_block, gl.num_programs(0)):
        block = tile // tiles_of_block
        expert = gl.load(block_expert + block).to(gl.int64)
        if expert >= 0:
            n, row = tile_rows(tile, expert, gl.arange(0, ROWS, gl.SliceLayout(0, layout)), N, ROWS, True)
            found = take_sums(handed, done, alpha, row, n < N, layout)
            gate, up = gl.split(found.reshape([BLOCK_M, COLUMNS, 2]))
            h = activate(gate, up, activation_alpha, activation_limit, ACTIVATION)
            codes, scales = quantize_blocks(h, gl.load(stored))
            first = tile % tiles_of_block * COLUMNS
            store_rows(codes, out, block_routes, block, first // 2, N // 2, routes)
            store_rows(scales, out_scale, block_routes, block, first // 16, N // 16, routes)
            done += 1


@gluon.jit
def store_weighted(
    factors,
    lists,
    out,
    handed,
    sizes,
    BLOCK_M: gl.constexpr,
    ROWS: gl.constexpr,
    WEIGHTED: gl.constexpr,
):
    """Takes each tile's sums, and stores them as blocks.store_sums does."""
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [WARPS, 1], [1, 0])
    alpha, topk_weights = factors
    block_routes, block_expert = lists
    N, blocks, _, routes = sizes
    tiles_of_block = gl.cdiv(N, ROWS)
    done = 0
    for tile in range(gl.program_id(0), blocks * tiles_of_block, gl.num_programs(0)):
        block = tile // tiles_of_block
        expert = gl.load(block_expert + block).to(gl.int64)
        if expert >= 0:
            n, row = tile_rows(tile, expert, gl.arange(0, ROWS, gl.SliceLayout(0, layout)), N, ROWS, False)
            found = take_sums(handed, done, alpha, row, n < N, layout)
            if WEIGHTED:
                slot = block.to(gl.int64) * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, layout))
                route = gl.load(block_routes + slot)
                found = found * gl.load(topk_weights + route, mask=route < routes, other=0.0)[:, None]
            first = tile % tiles_of_block * ROWS
            store_rows(found.to(out.dtype.element_ty), out, block_routes, block, first, N, routes)
            done += 1


@gluon.jit(do_not_specialize=["blocks", "k_units", "routes", "rows_per_input", "activation_alpha", "activation_limit"])
def w4a4_gate_up_specialized(
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
    blocks,
    k_units,
    routes,
    rows_per_input,
    activation_alpha,
    activation_limit,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_KB: gl.constexpr,
    K_UNIT: gl.constexpr,
    ACTIVATION: gl.constexpr,
):
    """What w4a4.w4a4_gate_up stores, by any number of programs. Every pointer to scales it reads is one to e4m3."""
    ROWS: gl.constexpr = 2 * BLOCK_N
    ring = allocate_ring(scale.dtype.element_ty, BLOCK_M, ROWS, BLOCK_KB)
    handed = allocate_sums(BLOCK_M, ROWS)
    inputs, factors, outputs = (x, x_scale, packed, scale), (alpha, stored), (out, out_scale)
    lists, sizes = (block_routes, block_expert), (N, blocks, k_units, routes)
    limits = (activation_alpha, activation_limit)
    gl.warp_specialize(
        [
            (multiply_tiles, (lists, ring, handed, sizes, BLOCK_M, ROWS, BLOCK_KB, K_UNIT, True)),
            (store_activated, (factors, lists, outputs, handed, sizes, limits, BLOCK_M, ROWS, ACTIVATION)),
            (load_tiles, (inputs, lists, ring, sizes, rows_per_input, BLOCK_M, ROWS, BLOCK_KB, K_UNIT, True)),
        ],
        [WARPS, WARPS],
    )


@gluon.jit(do_not_specialize=["blocks", "k_units", "routes"])
def w4a4_down_specialized(
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
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_KB: gl.constexpr,
    K_UNIT: gl.constexpr,
    WEIGHTED: gl.constexpr,
):
    """What w4a4.w4a4_down stores without ATOMIC, by any number of programs. Every pointer to scales is one to e4m3."""
    ring = allocate_ring(scale.dtype.element_ty, BLOCK_M, BLOCK_N, BLOCK_KB)
    handed = allocate_sums(BLOCK_M, BLOCK_N)
    inputs, factors = (x, x_scale, packed, scale), (alpha, topk_weights)
    lists, sizes = (block_routes, block_expert), (N, blocks, k_units, routes)
    gl.warp_specialize(
        [
            (multiply_tiles, (lists, ring, handed, sizes, BLOCK_M, BLOCK_N, BLOCK_KB, K_UNIT, False)),
            (store_weighted, (factors, lists, out, handed, sizes, BLOCK_M, BLOCK_N, WEIGHTED)),
            (load_tiles, (inputs, lists, ring, sizes, 1, BLOCK_M, BLOCK_N, BLOCK_KB, K_UNIT, False)),
        ],
        [WARPS, WARPS],
    )
