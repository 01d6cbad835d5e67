"""The grouped W4A16 GEMMs of prefill for sm_90, in Gluon: out^T = W @ X^T by wgmma (hopper_ring.py).

A program computes ROWS weight rows x as many routes of one block as there are, in one of several widths. Triton's
interpreter does not run Gluon. Device functions.

K stands in the order of hopper_decode.py. A sum is the same in any order where it is exact, and else another one.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .. import hopper
from .hopper_decode import LACKING, ROWS, STEP, rounded_pair
from .hopper_ring import allocate_ring, begin, first_slot, multiply, parts_of, rows_layout
from .pointwise import activate

widths_of = gluon.constexpr_function(hopper.widths)


@gluon.jit
def weight_rows(m, tile, HALF, GATED: gl.constexpr):
    """Where rows `m` of a program's tile are among an expert's. Rows 8 apart, which one thread has, are partners.

    GATED: gate's row and up's, HALF rows on, in the order in which down wants the activations; else columns 64 apart.
    """
    place = m // 16 * 8 + m % 8
    if GATED:
        s, h, t, j = place // 16, place // 8 % 2, place // 2 % 4, place % 2
        row = tile * 64 + 16 * t + 8 * h + 4 * j + s + m // 8 % 2 * HALF
    else:
        row = tile * 128 + place + m // 8 % 2 * 64
    return row


@gluon.jit
def store_columns(values, buffer, out, slots, first, columns, routes):
    """out[route, first:] = `values` [64, WIDTH], through a buffer in shared memory that turns them round."""
    WIDTH: gl.constexpr = values.shape[1]
    rows: gl.constexpr = rows_layout(gl.num_warps())
    turned = buffer.slice(0, WIDTH)
    turned.permute((1, 0)).store(values)
    route = gl.load(slots + gl.arange(0, WIDTH, gl.SliceLayout(1, rows)))
    column = first + gl.arange(0, 64, gl.SliceLayout(0, rows))
    place = out + route.to(gl.int64)[:, None] * columns + column[None, :]
    gl.store(place, turned.load(rows), mask=(route < routes)[:, None])


@gluon.jit
def of_bank(bank, layout: gl.constexpr, COUNT: gl.constexpr, place, sizes, GATED: gl.constexpr, PREPARED: gl.constexpr):
    """Where a tile's first step is [ROWS, COUNT] in a bank that has COUNT elements of a row in each step."""
    _, first_row, tile = place
    N, k_steps, _, _ = sizes
    m = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    if PREPARED:
        start = (first_row + tile * ROWS) * (k_steps * COUNT) + m * COUNT
    else:
        start = (first_row + weight_rows(m, tile, N, GATED)) * (k_steps * COUNT)
    return bank + start[:, None] + gl.arange(0, COUNT, gl.SliceLayout(0, layout))[None, :]


@gluon.jit
def of_tokens(x, slots, sizes, WIDTH: gl.constexpr, part: gl.constexpr):
    """Where a part's rows of x are, and which are routes' own. A slot without a route has the block's first one's."""
    _, k_steps, routes, rows_per_input = sizes
    layout: gl.constexpr = rows_layout(gl.num_warps())
    slot = first_slot(WIDTH, part) + gl.arange(0, parts_of(WIDTH)[part], gl.SliceLayout(1, layout))
    route = gl.load(slots + slot)
    real = (route < routes)[:, None]
    route = gl.where(route < routes, route, gl.load(slots))
    row = (route // rows_per_input).to(gl.int64)
    return x + row[:, None] * (k_steps * STEP) + gl.arange(0, STEP, gl.SliceLayout(0, layout))[None, :], real


@gluon.jit
def weights_of(inputs, place, sizes, GATED: gl.constexpr, PREPARED: gl.constexpr):
    """Where a tile's first step is: codes in words of eight, and block scales."""
    _, packed, scale = inputs
    warps: gl.constexpr = gl.num_warps()
    of_codes: gl.constexpr = gl.BlockedLayout([1, 4], [16, 2], [warps, 1], [1, 0])
    of_scales: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [warps, 1], [1, 0])
    words = packed.to(gl.pointer_type(gl.int32), bitcast=True)
    words = of_bank(words, of_codes, STEP // 8, place, sizes, GATED, PREPARED)
    return words, of_bank(scale, of_scales, STEP // 16, place, sizes, GATED, PREPARED)


@gluon.jit
def fetch_scales(global_scale, place, sizes, GATED: gl.constexpr):
    """Brings a tile's global scales into the L2 cache: when its sums are there, it would wait for them."""
    _, first_row, tile = place
    N, _, _, _ = sizes
    rows: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    pointers = global_scale + first_row + weight_rows(gl.arange(0, ROWS, rows), tile, N, GATED)
    gl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], gl.int32, False, 1)


@gluon.jit
def sums_of(
    x,
    weights,
    slots,
    sizes,
    ring,
    WIDTH: gl.constexpr,
    STAGES: gl.constexpr,
    REST: gl.constexpr,
    PREPARED: gl.constexpr,
):
    """The sums of each part of a tile."""
    _, k_steps, _, _ = sizes
    rows, real = (), ()
    for part in gl.static_range(len(parts_of(WIDTH))):
        some, own = of_tokens(x, slots, sizes, WIDTH, part)
        rows += (some,)
        real += (own,)
    return multiply(ring, (rows, weights), real, k_steps, WIDTH, STAGES, REST, PREPARED)


@gluon.jit
def store_tile(acc, factors, out, place, sizes, limits, buffers, ACTIVATION: gl.constexpr, WEIGHTED: gl.constexpr):
    """Stores a tile's sums: the activation of gate and up where there is one, else the sums, WEIGHTED or not."""
    global_scale, topk_weights = factors
    slots, first_row, tile = place
    N, _, routes, _ = sizes
    dtype: gl.constexpr = out.dtype.element_ty
    mma: gl.constexpr = acc.type.layout
    WIDTH: gl.constexpr = acc.shape[1]
    row = weight_rows(gl.arange(0, ROWS, gl.SliceLayout(1, mma)), tile, N, ACTIVATION is not None)
    acc = acc * LACKING * gl.load(global_scale + first_row + row)[:, None]
    if WEIGHTED:
        route = gl.load(slots + gl.arange(0, WIDTH, gl.SliceLayout(0, mma)))
        acc = acc * gl.load(topk_weights + route, mask=route < routes, other=0.0)[None, :]
    first, second = gl.split(acc.reshape([ROWS // 16, 2, 8, WIDTH]).permute([0, 2, 3, 1]))
    first, second = first.reshape([ROWS // 2, WIDTH]), second.reshape([ROWS // 2, WIDTH])
    if ACTIVATION is not None:
        alpha, limit = limits
        gate, up = rounded_pair(first, second, dtype)
        act = activate(gate, up, alpha, limit, ACTIVATION)
        store_columns(act.to(dtype), buffers[0], out, slots, tile * (ROWS // 2), N, routes)
    else:
        store_columns(first.to(dtype), buffers[0], out, slots, tile * ROWS, N, routes)
        store_columns(second.to(dtype), buffers[1], out, slots, tile * ROWS + ROWS // 2, N, routes)


@gluon.jit
def fitting(slots, routes, widths: gl.constexpr):
    """For each width, whether the block's routes, which fill its first slots, take it and no smaller one."""
    fits = ()
    for index in gl.static_range(len(widths)):
        one = True
        if index > 0:
            one = gl.load(slots + widths[index - 1]) < routes
        if index < len(widths) - 1:
            one = one & (gl.load(slots + widths[index]) >= routes)
        fits += (one,)
    return fits


@gluon.jit
def one_tile(
    inputs,
    factors,
    lists,
    out,
    sizes,
    limits,
    BLOCK_M: gl.constexpr,
    STAGES: gl.constexpr,
    REST: gl.constexpr,
    PREPARED: gl.constexpr,
    ACTIVATION: gl.constexpr,
    WEIGHTED: gl.constexpr,
):
    """This program's tile. Programs that share a block's activations are neighbours.

    A load waits for no other that it can do without: a tile of few steps takes no longer than these.
    """
    x, _, scale = inputs
    block_routes, block_expert = lists
    N, _, routes, _ = sizes
    GATED: gl.constexpr = ACTIVATION is not None
    tiles = N // (ROWS // 2 if GATED else ROWS)
    block = gl.program_id(0) // tiles
    slots = block_routes + block.to(gl.int64) * BLOCK_M
    fits = fitting(slots, routes, widths_of(BLOCK_M))
    expert = gl.load(block_expert + block).to(gl.int64)
    if expert >= 0:  # the grid is an upper bound
        ring = allocate_ring(x, scale, BLOCK_M, STAGES)
        first_row, tile = expert * (2 * N if GATED else N), gl.program_id(0) % tiles
        place = slots, first_row, tile
        weights = weights_of(inputs, place, sizes, GATED, PREPARED)
        begin(ring, weights, PREPARED)
        fetch_scales(factors[0], place, sizes, GATED)
        for index in gl.static_range(len(widths_of(BLOCK_M))):
            if fits[index]:
                WIDTH: gl.constexpr = widths_of(BLOCK_M)[index]
                accs = sums_of(x, weights, slots, sizes, ring, WIDTH, STAGES, REST, PREPARED)
                for part in gl.static_range(len(accs)):
                    place = slots + first_slot(WIDTH, part), first_row, tile
                    store_tile(accs[part], factors, out, place, sizes, limits, ring[0], ACTIVATION, WEIGHTED)


@gluon.jit(do_not_specialize=["k_units", "routes", "rows_per_input", "activation_alpha", "activation_limit"])
def w4a16_hopper_gate_up(
    x,
    packed,
    scale,
    global_scale,
    block_routes,
    block_expert,
    out,
    N,
    k_units,
    routes,
    rows_per_input,
    activation_alpha,
    activation_limit,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    REST: gl.constexpr,
    K_UNIT: gl.constexpr,
    PREPARED: gl.constexpr,
    ACTIVATION: gl.constexpr,
):
    """out[route, i] = f(gate) * up, both rounded to the dtype of `out` before, of x[route // rows_per_input].

    `x` [R, K] has the order of K that hopper.k_of_position says, and so has what is stored, [routes, N], for
    down. K is k_units * K_UNIT; N is a multiple of 64. PREPARED: the banks are rearranged, as hopper_banks.py does it.
    """
    gl.static_assert(BLOCK_N == ROWS and K_UNIT == STEP)
    inputs, factors, lists = (x, packed, scale), (global_scale, None), (block_routes, block_expert)
    sizes, limits = (N, k_units, routes, rows_per_input), (activation_alpha, activation_limit)
    one_tile(inputs, factors, lists, out, sizes, limits, BLOCK_M, STAGES, REST, PREPARED, ACTIVATION, False)


@gluon.jit(do_not_specialize=["k_units", "routes"])
def w4a16_hopper_down(
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
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    REST: gl.constexpr,
    K_UNIT: gl.constexpr,
    PREPARED: gl.constexpr,
    WEIGHTED: gl.constexpr,
):
    """What gemm.w4a16_gemm stores, of rows of `x` in the order of K that gate_up stores. N is a multiple of 128."""
    gl.static_assert(BLOCK_N == ROWS and K_UNIT == STEP)
    inputs, factors, lists = (x, packed, scale), (global_scale, topk_weights), (block_routes, block_expert)
    sizes, limits = (N, k_units, routes, 1), (0.0, 0.0)
    one_tile(inputs, factors, lists, out, sizes, limits, BLOCK_M, STAGES, REST, PREPARED, None, WEIGHTED)
