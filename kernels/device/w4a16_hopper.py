"""The grouped W4A16 GEMMs of prefill for sm_90, in Gluon: out^T = W @ X^T by wgmma, weights decoded into registers.

A program computes ROWS weight rows x as many routes of one block as there are, in one of several widths. It multiplies
the step at hand while it decodes the next and copies a later one, by cp.async, into a ring in shared memory. Triton's
interpreter does not run Gluon. Device functions.

K stands in the order of hopper_decode.py. A sum is the same in any order where it is exact, and else another one.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from .. import hopper
from .hopper_decode import LACKING, ROWS, STEP, decode, decoded_layout, rounded_pair
from .pointwise import activate

MASKED = gl.constexpr(True)
widths_of = gluon.constexpr_function(hopper.widths)


@gluon.constexpr_function
def mma_layout(warps, block_m, index):
    return gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, widths_of(block_m)[index], 16])


@gluon.constexpr_function
def rows_layout(warps):
    """Rows of 64 values of 16 bits, 16 bytes a thread."""
    return gl.BlockedLayout([1, 8], [4, 8], [warps, 1], [1, 0])


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
def allocate_ring(x, scale, BLOCK_M: gl.constexpr, STAGES: gl.constexpr):
    """Activations, codes and block scales of STAGES steps; each stage by itself, so that none waits for another."""
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    tokens, codes, scales = (), (), ()
    for _ in gl.static_range(STAGES):
        tokens += (gl.allocate_shared_memory(x.dtype.element_ty, [BLOCK_M, STEP], swizzled),)
        codes += (gl.allocate_shared_memory(gl.int32, [ROWS, STEP // 8], flat),)
        scales += (gl.allocate_shared_memory(scale.dtype.element_ty, [ROWS, STEP // 16], flat),)
    return tokens, codes, scales


@gluon.constexpr_function
def step_rows(prepared):
    """Rows whose codes of a step follow each other."""
    return ROWS if prepared else 1


@gluon.jit
def copy_step(
    ring,
    pointers,
    real,
    slot: gl.constexpr,
    ahead: gl.constexpr,
    WIDTH: gl.constexpr,
    PREPARED: gl.constexpr,
    mask=None,
):
    """Starts the copies of a step, `ahead` steps from where the pointers are, into a slot of the ring."""
    tokens, codes, scales = ring
    x, packed, scale = pointers
    rows = mask
    if real is not None:
        rows = real if mask is None else real & mask
    async_copy.async_load(tokens[slot].slice(0, WIDTH), x + ahead * STEP, rows)
    async_copy.async_load(codes[slot], packed + ahead * (step_rows(PREPARED) * STEP // 8), mask)
    async_copy.async_load(scales[slot], scale + ahead * (step_rows(PREPARED) * STEP // 16), mask)


@gluon.jit
def decode_step(ring, slot: gl.constexpr, dtype: gl.constexpr, PREPARED: gl.constexpr, mma: gl.constexpr):
    _, codes, scales = ring
    words = codes[slot].reshape([ROWS, 4, 2])
    return decode(words, scales[slot], dtype, PREPARED, decoded_layout(gl.num_warps()), gl.DotOperandLayout(0, mma, 2))


@gluon.jit
def multiply_step(
    ring,
    pointers,
    real,
    sums,
    copies,
    step: gl.constexpr,
    COPY: gl.constexpr,
    DECODE: gl.constexpr,
    WIDTH: gl.constexpr,
    STAGES: gl.constexpr,
    PREPARED: gl.constexpr,
    mma: gl.constexpr,
):
    """Step `step` from where the pointers are: multiplies `now`, copies a later step if there is one, decodes the next.

    `copies` is a mask, not a branch, across which ptxas would not let the decoding overlap.
    `sums` are (acc, now, before): the sums, this step's weights and those that may still be read.
    """
    acc, now, before = sums
    tokens, _, _ = ring
    async_copy.wait_group(STAGES - 4)
    gl.barrier()
    fence_async_shared()
    acc = warpgroup_mma(now, tokens[step % STAGES].slice(0, WIDTH).permute((1, 0)), acc, is_async=True)
    acc, before = warpgroup_mma_wait(1, deps=[acc, before])
    if COPY:
        copy_step(ring, pointers, real, (step + STAGES - 2) % STAGES, step + STAGES - 2, WIDTH, PREPARED, copies)
    async_copy.commit_group()  # of nothing, perhaps: as many groups are pending in every step
    after = now
    if DECODE:
        after = decode_step(ring, (step + 1) % STAGES, now.dtype, PREPARED, mma)
    return acc, after, now


@gluon.jit
def multiply(
    ring,
    pointers,
    real,
    k_steps,
    WIDTH: gl.constexpr,
    STAGES: gl.constexpr,
    REST: gl.constexpr,
    PREPARED: gl.constexpr,
    mma: gl.constexpr,
):
    """The sums [ROWS, WIDTH] over k_steps of K, at least STAGES - 2; REST is k_steps % STAGES, at most STAGES - 2.

    Steps are not skipped by a branch: ptxas would take wgmma apart. Hence those of REST, and a step that is decoded
    after the last where REST is 0.
    """
    gl.static_assert(REST <= STAGES - 2)
    for step in gl.static_range(STAGES - 2):
        copy_step(ring, pointers, real, step, step, WIDTH, PREPARED)
        async_copy.commit_group()
    async_copy.wait_group(STAGES - 3)
    gl.barrier()
    now = decode_step(ring, 0, pointers[0].dtype.element_ty, PREPARED, mma)
    sums = (gl.zeros([ROWS, WIDTH], gl.float32, mma), now, now)
    for start in range(0, k_steps - REST, STAGES):
        for step in gl.static_range(STAGES):
            copies = start + step + STAGES - 2 < k_steps
            sums = multiply_step(ring, pointers, real, sums, copies, step, True, True, WIDTH, STAGES, PREPARED, mma)
        x, packed, scale = pointers
        words: gl.constexpr = step_rows(PREPARED) * STEP // 8
        pointers = (x + STAGES * STEP, packed + STAGES * words, scale + STAGES * (words // 2))
    for step in gl.static_range(REST):
        sums = multiply_step(
            ring, pointers, real, sums, None, step, False, step < REST - 1, WIDTH, STAGES, PREPARED, mma
        )
    acc, _, before = sums
    acc, _ = warpgroup_mma_wait(0, deps=[acc, before])
    async_copy.wait_group(0)  # copies that the mask left out write zeros, and what follows uses the ring
    gl.barrier()
    return acc


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
def of_rows(layout: gl.constexpr, place, N, k_steps, count: gl.constexpr, GATED: gl.constexpr, PREPARED: gl.constexpr):
    """Where the first step of a tile's rows starts in a bank that has `count` elements of a row in each."""
    _, first_row, tile = place
    m = gl.arange(0, ROWS, layout)
    if PREPARED:
        start = (first_row + tile * ROWS) * (k_steps * count) + m * count
    else:
        start = (first_row + weight_rows(m, tile, N, GATED)) * (k_steps * count)
    return start


@gluon.jit
def sums_of(
    inputs,
    place,
    sizes,
    ring,
    WIDTH: gl.constexpr,
    STAGES: gl.constexpr,
    REST: gl.constexpr,
    GATED: gl.constexpr,
    PREPARED: gl.constexpr,
    mma: gl.constexpr,
):
    """The sums [ROWS, WIDTH] of a tile. A slot without a route reads what the block's first route does."""
    x, packed, scale = inputs
    slots, first_row, tile = place
    N, k_steps, routes, rows_per_input = sizes
    warps: gl.constexpr = gl.num_warps()
    of_x: gl.constexpr = rows_layout(warps)
    of_codes: gl.constexpr = gl.BlockedLayout([1, 4], [16, 2], [warps, 1], [1, 0])
    of_scales: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [warps, 1], [1, 0])

    route = gl.load(slots + gl.arange(0, WIDTH, gl.SliceLayout(1, of_x)))
    real = (route < routes)[:, None] if MASKED and WIDTH <= 64 else None
    route = gl.where(route < routes, route, gl.load(slots))
    row = (route // rows_per_input).to(gl.int64)
    x += row[:, None] * (k_steps * STEP) + gl.arange(0, STEP, gl.SliceLayout(0, of_x))[None, :]
    packed = packed.to(gl.pointer_type(gl.int32), bitcast=True)  # a word has eight codes
    packed += of_rows(gl.SliceLayout(1, of_codes), place, N, k_steps, STEP // 8, GATED, PREPARED)[:, None]
    packed += gl.arange(0, STEP // 8, gl.SliceLayout(0, of_codes))[None, :]
    scale += of_rows(gl.SliceLayout(1, of_scales), place, N, k_steps, STEP // 16, GATED, PREPARED)[:, None]
    scale += gl.arange(0, STEP // 16, gl.SliceLayout(0, of_scales))[None, :]
    return multiply(ring, (x, packed, scale), real, k_steps, WIDTH, STAGES, REST, PREPARED, mma)


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
def is_width(slots, routes, widths: gl.constexpr, index: gl.constexpr):
    """Whether the block's routes, which fill its first slots, take the width of this index and no smaller one."""
    fits = True
    if index > 0:
        fits = gl.load(slots + widths[index - 1]) < routes
    if index < len(widths) - 1:
        fits = fits & (gl.load(slots + widths[index]) >= routes)
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
    """This program's tile. Programs that share a block's activations are neighbours."""
    x, _, scale = inputs
    block_routes, block_expert = lists
    N, _, routes, _ = sizes
    GATED: gl.constexpr = ACTIVATION is not None
    tiles = N // (ROWS // 2 if GATED else ROWS)
    block = gl.program_id(0) // tiles
    expert = gl.load(block_expert + block).to(gl.int64)
    if expert >= 0:  # the grid is an upper bound
        ring = allocate_ring(x, scale, BLOCK_M, STAGES)
        slots = block_routes + block.to(gl.int64) * BLOCK_M
        place = slots, expert * (2 * N if GATED else N), gl.program_id(0) % tiles
        for index in gl.static_range(len(widths_of(BLOCK_M))):
            if is_width(slots, routes, widths_of(BLOCK_M), index):
                mma: gl.constexpr = mma_layout(gl.num_warps(), BLOCK_M, index)
                acc = sums_of(inputs, place, sizes, ring, widths_of(BLOCK_M)[index], STAGES, REST, GATED, PREPARED, mma)
                store_tile(acc, factors, out, place, sizes, limits, ring[0], ACTIVATION, WEIGHTED)


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
    down. K is k_units * K_UNIT; N is a multiple of 64.
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
    one_tile(
        inputs,
        factors,
        lists,
        out,
        (N, k_units, routes, 1),
        (0.0, 0.0),
        BLOCK_M,
        STAGES,
        REST,
        PREPARED,
        None,
        WEIGHTED,
    )
