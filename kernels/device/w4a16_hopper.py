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

widths_of = gluon.constexpr_function(hopper.widths)


parts_of = gluon.constexpr_function(hopper.parts)


@gluon.constexpr_function
def mma_layout(warps, part):
    return gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, part, 16])


@gluon.constexpr_function
def first_of(sizes, part):
    """The first slot of a part, behind those of the parts before it."""
    return sum(sizes[:part])


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
def slots_of(tokens, x, part: gl.constexpr):
    """The rows of a stage that are those of a part of x."""
    first: gl.constexpr = x[0].shape[0] if part else 0
    return tokens.slice(first, x[part].shape[0])


@gluon.jit
def copy_step(ring, pointers, real, slot: gl.constexpr, ahead: gl.constexpr, PREPARED: gl.constexpr, mask=None):
    """Starts the copies of a step, `ahead` steps from where the pointers are, into a slot of the ring.

    `real` are masks of the rows of each part of x that are routes' own; None copies all.
    """
    tokens, codes, scales = ring
    x, packed, scale = pointers
    for part in gl.static_range(len(x)):
        rows = mask
        if len(x) == 1 and x[0].shape[0] <= 64:
            rows = real[part] if mask is None else real[part] & mask
        async_copy.async_load(slots_of(tokens[slot], x, part), x[part] + ahead * STEP, rows)
    async_copy.async_load(codes[slot], packed + ahead * (step_rows(PREPARED) * STEP // 8), mask)
    async_copy.async_load(scales[slot], scale + ahead * (step_rows(PREPARED) * STEP // 16), mask)


@gluon.jit
def decode_step(ring, slot: gl.constexpr, dtype: gl.constexpr, PREPARED: gl.constexpr, mma: gl.constexpr):
    _, codes, scales = ring
    words = codes[slot].reshape([ROWS, 4, 2])
    return decode(words, scales[slot], dtype, PREPARED, decoded_layout(gl.num_warps()), gl.DotOperandLayout(0, mma, 2))


@gluon.jit
def multiply_part(now, tokens, acc):
    operand: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    now = gl.convert_layout(now, operand, assert_trivial=True)
    return warpgroup_mma(now, tokens.permute((1, 0)), acc, is_async=True)


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
    STAGES: gl.constexpr,
    PREPARED: gl.constexpr,
):
    """Step `step` from where the pointers are: multiplies `now`, copies a later step if there is one, decodes the next.

    `copies` is a mask, not a branch, across which ptxas would not let the decoding overlap.
    `sums` are (accs, now, before): the sums of each part, this step's weights and those that may still be read.
    """
    accs, now, before = sums
    tokens, _, _ = ring
    x, _, _ = pointers
    async_copy.wait_group(STAGES - 4)
    gl.barrier()
    fence_async_shared()
    started = ()
    for part in gl.static_range(len(accs)):
        started += (multiply_part(now, slots_of(tokens[step % STAGES], x, part), accs[part]),)
    accs, before = waited(len(accs), started, before)
    if COPY:
        copy_step(ring, pointers, real, (step + STAGES - 2) % STAGES, step + STAGES - 2, PREPARED, copies)
    async_copy.commit_group()  # of nothing, perhaps: as many groups are pending in every step
    after = now
    if DECODE:
        after = decode_step(ring, (step + 1) % STAGES, now.dtype, PREPARED, accs[0].type.layout)
    return accs, after, now


@gluon.jit
def waited(pending: gl.constexpr, accs, before):
    """`accs` and `before` when all products but `pending` are there."""
    done = warpgroup_mma_wait(pending, deps=accs + (before,))
    return done[:-1], done[-1]


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
):
    """The sums [ROWS, part] over k_steps of K, at least STAGES - 2; REST is k_steps % STAGES, at most STAGES - 2.

    Steps are not skipped by a branch: ptxas would take wgmma apart. Hence those of REST, and a step that is decoded
    after the last where REST is 0.
    """
    gl.static_assert(REST <= STAGES - 2)
    for step in gl.static_range(STAGES - 2):
        copy_step(ring, pointers, real, step, step, PREPARED)
        async_copy.commit_group()
    async_copy.wait_group(STAGES - 3)
    gl.barrier()
    accs = ()
    for part in gl.static_range(len(parts_of(WIDTH))):
        accs += (
            gl.zeros([ROWS, parts_of(WIDTH)[part]], gl.float32, mma_layout(gl.num_warps(), parts_of(WIDTH)[part])),
        )
    now = decode_step(ring, 0, pointers[0][0].dtype.element_ty, PREPARED, accs[0].type.layout)
    sums = (accs, now, now)
    for start in range(0, k_steps - REST, STAGES):
        for step in gl.static_range(STAGES):
            copies = start + step + STAGES - 2 < k_steps
            sums = multiply_step(ring, pointers, real, sums, copies, step, True, True, STAGES, PREPARED)
        pointers = advanced(pointers, STAGES, PREPARED)
    for step in gl.static_range(REST):
        sums = multiply_step(ring, pointers, real, sums, None, step, False, step < REST - 1, STAGES, PREPARED)
    accs, _, before = sums
    accs, _ = waited(0, accs, before)
    async_copy.wait_group(0)  # copies that the mask left out write zeros, and what follows uses the ring
    gl.barrier()
    return accs


@gluon.jit
def advanced(pointers, STAGES: gl.constexpr, PREPARED: gl.constexpr):
    """The pointers, STAGES steps on."""
    x, packed, scale = pointers
    words: gl.constexpr = step_rows(PREPARED) * STEP // 8
    rows = ()
    for part in gl.static_range(len(x)):
        rows += (x[part] + STAGES * STEP,)
    return rows, packed + STAGES * words, scale + STAGES * (words // 2)


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
def rows_of_x(x, slots, sizes, WIDTH: gl.constexpr, part: gl.constexpr):
    """Where the rows of a part start, and which are routes' own. A slot without a route has the block's first one's."""
    _, k_steps, routes, rows_per_input = sizes
    of_x: gl.constexpr = rows_layout(gl.num_warps())
    PART: gl.constexpr = parts_of(WIDTH)[part]
    route = gl.load(slots + first_of(parts_of(WIDTH), part) + gl.arange(0, PART, gl.SliceLayout(1, of_x)))
    real = (route < routes)[:, None]
    route = gl.where(route < routes, route, gl.load(slots))
    row = (route // rows_per_input).to(gl.int64)
    return x + row[:, None] * (k_steps * STEP) + gl.arange(0, STEP, gl.SliceLayout(0, of_x))[None, :], real


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
):
    """The sums [ROWS, WIDTH] of a tile. A slot without a route reads what the block's first route does."""
    x, packed, scale = inputs
    slots, first_row, tile = place
    N, k_steps, routes, rows_per_input = sizes
    warps: gl.constexpr = gl.num_warps()
    of_codes: gl.constexpr = gl.BlockedLayout([1, 4], [16, 2], [warps, 1], [1, 0])
    of_scales: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [warps, 1], [1, 0])

    rows, real = (), ()
    for part in gl.static_range(len(parts_of(WIDTH))):
        some, own = rows_of_x(x, slots, sizes, WIDTH, part)
        rows += (some,)
        real += (own,)
    packed = packed.to(gl.pointer_type(gl.int32), bitcast=True)  # a word has eight codes
    packed += of_rows(gl.SliceLayout(1, of_codes), place, N, k_steps, STEP // 8, GATED, PREPARED)[:, None]
    packed += gl.arange(0, STEP // 8, gl.SliceLayout(0, of_codes))[None, :]
    scale += of_rows(gl.SliceLayout(1, of_scales), place, N, k_steps, STEP // 16, GATED, PREPARED)[:, None]
    scale += gl.arange(0, STEP // 16, gl.SliceLayout(0, of_scales))[None, :]
    return multiply(ring, (rows, packed, scale), real, k_steps, WIDTH, STAGES, REST, PREPARED)


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
        first_row, tile = expert * (2 * N if GATED else N), gl.program_id(0) % tiles
        place = slots, first_row, tile
        for index in gl.static_range(len(widths_of(BLOCK_M))):
            if is_width(slots, routes, widths_of(BLOCK_M), index):
                WIDTH: gl.constexpr = widths_of(BLOCK_M)[index]
                accs = sums_of(inputs, place, sizes, ring, WIDTH, STAGES, REST, GATED, PREPARED)
                for part in gl.static_range(len(accs)):
                    place = slots + first_of(parts_of(WIDTH), part), first_row, tile
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
