"""The grouped W4A16 GEMMs of prefill for sm_90, in Gluon: out^T = W @ X^T by wgmma, weights decoded into registers.

A program computes ROWS weight rows x as many routes of one block as there are, in one of several widths. It multiplies
the step at hand while it decodes the next and copies a later one, by cp.async, into a ring in shared memory. Device
functions; Triton's interpreter does not run Gluon.

K is in an order of its own inside each 64, so that a thread finds its codes of four instructions in 8 bytes that follow
each other, below one block scale; `k_of_position` says which. The activations have to stand in that order, while the
weights stand as the checkpoint has them. A sum is the same in any order where it is exact, and else another one.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from .pointwise import activate

STEP = gl.constexpr(64)  # of K
WORDS = gl.constexpr(8)  # int32 of codes that a row has in a step

# Codes are left at value * 2^-126 in bf16 and at value * 2^-14 in fp16, as their bits read there, and their block
# scales multiplied by what leaves weight * 2^-7: exact in both, as decode.py says of its pair.
SCALE_BF16 = gl.constexpr(2.0**119)
SCALE_FP16 = gl.constexpr(2.0**7)
LACKING = gl.constexpr(2.0**7)


@gluon.constexpr_function
def decoded_layout(rows, num_warps):
    """[row, t, h, s, j] of a step's weights: thread t of four has 16 k of each of its rows, two words h of them.

    Codes s and s + 4 of a word are the pair that instruction s takes of it.
    """
    bits = [[16 << bit, 0, 0, 0, 0] for bit in range((rows // 16).bit_length() - 1)]
    of_warps = num_warps.bit_length() - 1
    registers = [[0, 0, 0, 0, 1], [0, 0, 0, 1, 0], [0, 0, 0, 2, 0], [0, 0, 1, 0, 0], [8, 0, 0, 0, 0], *bits[of_warps:]]
    lanes = [[0, 1, 0, 0, 0], [0, 2, 0, 0, 0], [1, 0, 0, 0, 0], [2, 0, 0, 0, 0], [4, 0, 0, 0, 0]]
    return gl.DistributedLinearLayout(registers, lanes, bits[:of_warps], [], [rows, 4, 2, 4, 2])


@gluon.constexpr_function
def decode_source(bf16):
    """PTX: the eight codes of word $4, times the pair of scales $12, as four pairs in $0 to $3."""
    magnitude, shifts = ("0x01C001C0", (6, 2, -2, -6)) if bf16 else ("0x0E000E00", (9, 5, 1, -3))
    kind = "bf16x2" if bf16 else "f16x2"
    lines = [".reg .b32 m, g;"]
    for s, shift in enumerate(shifts):
        lines.append(f"{'shl' if shift > 0 else 'shr'}.b32 m, $4, {abs(shift)};")
        lines.append(f"shl.b32 g, $4, {12 - 4 * s};")
        lines.append(f"and.b32 m, m, {magnitude};")
        lines.append("and.b32 g, g, 0x80008000;")
        lines.append("or.b32 m, m, g;")
        lines.append(f"mul.{kind} ${s}, m, $12;")
    return "{ " + " ".join(lines) + " }"


@gluon.jit
def decode(words, scale, dtype: gl.constexpr, layout: gl.constexpr, operand: gl.constexpr):
    """The step's weights * 2^-7 as wgmma's first operand [ROWS, STEP], from shared `words` and `scale`."""
    pairs: gl.constexpr = gl.SliceLayout(4, layout)
    codes = words.load(gl.SliceLayout(3, pairs))
    factor = scale.load(gl.SliceLayout(2, gl.SliceLayout(3, pairs))).to(gl.float16)
    if dtype == gl.bfloat16:
        factor = (factor.to(gl.float32) * SCALE_BF16).to(gl.bfloat16)
    else:
        factor = factor * SCALE_FP16
    ROWS: gl.constexpr = words.shape[0]
    shape: gl.constexpr = [ROWS, 4, 2, 4, 2]
    codes, _ = gl.broadcast(codes[:, :, :, None, None], gl.full(shape, 0, gl.int32, layout))
    factor, _ = gl.broadcast(factor[:, :, None, None, None], gl.full(shape, 0, dtype, layout))
    source: gl.constexpr = decode_source(dtype == gl.bfloat16)
    registers: gl.constexpr = "=r,=r,=r,=r,r,r,r,r,r,r,r,r,r,r,r,r"
    if dtype == gl.bfloat16:
        weights = gl.inline_asm_elementwise(source, registers, [codes, factor], gl.bfloat16, True, 8)
    else:
        weights = gl.inline_asm_elementwise(source, registers, [codes, factor], gl.float16, True, 8)
    weights = weights.permute([0, 3, 2, 1, 4]).reshape([ROWS, STEP])
    return gl.convert_layout(weights, operand, assert_trivial=True)


@gluon.constexpr_function
def k_of_position(position):
    """Which k of its 64 stands at a position of the activations."""
    s, h, t, j = position // 16, position // 8 % 2, position // 2 % 4, position % 2
    return 16 * t + 8 * h + 4 * j + s


@gluon.jit
def weight_rows(m, tile, N, ROWS: gl.constexpr, GATED: gl.constexpr):
    """Where rows `m` of a program's tile are among an expert's. Rows 8 apart, which one thread has, are partners.

    GATED: gate's row and up's, N on, in the order in which down wants the activations; else columns ROWS / 2 apart.
    Rows beyond the last are copies of it.
    """
    place, partner = m // 16 * 8 + m % 8, m // 8 % 2
    if GATED:
        s, h, t, j = place // 16 % 4, place // 8 % 2, place // 2 % 4, place % 2
        column = tile * (ROWS // 2) + place // 64 * 64 + 16 * t + 8 * h + 4 * j + s
        row = gl.minimum(column, N - 1) + partner * N
    else:
        row = gl.minimum(tile * ROWS + place + partner * (ROWS // 2), N - 1)
    return row


@gluon.jit
def allocate_ring(x, scale, ROWS: gl.constexpr, BLOCK_M: gl.constexpr, STAGES: gl.constexpr):
    """Activations, codes and block scales of STAGES steps; each stage by itself, so that none waits for another."""
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    tokens, codes, scales = (), (), ()
    for _ in gl.static_range(STAGES):
        tokens = tokens + (gl.allocate_shared_memory(x.dtype.element_ty, [BLOCK_M, STEP], swizzled),)
        codes = codes + (gl.allocate_shared_memory(gl.uint8, [ROWS, STEP // 2], flat),)
        scales = scales + (gl.allocate_shared_memory(scale.dtype.element_ty, [ROWS, STEP // 16], flat),)
    return tokens, codes, scales


@gluon.jit
def copy_step(ring, pointers, slot: gl.constexpr, ahead: gl.constexpr, WIDTH: gl.constexpr):
    """Starts the copies of a step, `ahead` steps from where the pointers are, into a slot of the ring."""
    tokens, codes, scales = ring
    x, packed, scale = pointers
    async_copy.async_load(tokens[slot].slice(0, WIDTH), x + ahead * STEP)
    async_copy.async_load(codes[slot], packed + ahead * (STEP // 2))
    async_copy.async_load(scales[slot], scale + ahead * (STEP // 16))
    async_copy.commit_group()


@gluon.jit
def decode_step(ring, slot: gl.constexpr, dtype: gl.constexpr, mma: gl.constexpr):
    _, codes, scales = ring
    ROWS: gl.constexpr = codes[0].shape[0]
    words = codes[slot]._reinterpret(gl.int32, [ROWS, 4, 2], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]))
    return decode(words, scales[slot], dtype, decoded_layout(ROWS, gl.num_warps()), gl.DotOperandLayout(0, mma, 2))


@gluon.jit
def multiply_step(
    ring,
    pointers,
    sums,
    step: gl.constexpr,
    PENDING: gl.constexpr,
    COPY: gl.constexpr,
    DECODE: gl.constexpr,
    WIDTH: gl.constexpr,
    STAGES: gl.constexpr,
    mma: gl.constexpr,
):
    """Step `step` from where the pointers are: multiplies `now`, copies a later step and decodes the next.

    `sums` are (acc, now, before): the sums, this step's weights and those that may still be read.
    """
    acc, now, before = sums
    tokens, _, _ = ring
    async_copy.wait_group(PENDING)
    gl.barrier()
    fence_async_shared()
    acc = warpgroup_mma(now, tokens[step % STAGES].slice(0, WIDTH).permute((1, 0)), acc, is_async=True)
    acc, before = warpgroup_mma_wait(1, deps=[acc, before])
    if COPY:
        copy_step(ring, pointers, (step + STAGES - 2) % STAGES, step + STAGES - 2, WIDTH)
    after = now
    if DECODE:
        after = decode_step(ring, (step + 1) % STAGES, now.dtype, mma)
    return acc, after, now


@gluon.jit
def multiply(
    ring, pointers, k_steps, ROWS: gl.constexpr, WIDTH: gl.constexpr, STAGES: gl.constexpr, REST: gl.constexpr, mma: gl.constexpr
):
    """The sums [ROWS, WIDTH] over k_steps of K; REST is (k_steps - STAGES + 2) % STAGES."""
    for step in gl.static_range(STAGES - 2):
        copy_step(ring, pointers, step, step, WIDTH)
    async_copy.wait_group(STAGES - 3)
    gl.barrier()
    now = decode_step(ring, 0, pointers[0].dtype.element_ty, mma)
    sums = (gl.zeros([ROWS, WIDTH], gl.float32, mma), now, now)
    for _start in range(0, k_steps - (STAGES - 2 + REST), STAGES):
        for step in gl.static_range(STAGES):
            sums = multiply_step(ring, pointers, sums, step, STAGES - 4, True, True, WIDTH, STAGES, mma)
        x, packed, scale = pointers
        pointers = (x + STAGES * STEP, packed + STAGES * (STEP // 2), scale + STAGES * (STEP // 16))
    for step in gl.static_range(REST):
        sums = multiply_step(ring, pointers, sums, step, STAGES - 4, True, True, WIDTH, STAGES, mma)
    for step in gl.static_range(STAGES - 3):
        sums = multiply_step(
            ring, pointers, sums, REST + step, STAGES - 4 - step, False, True, WIDTH, STAGES, mma
        )
    sums = multiply_step(ring, pointers, sums, REST + STAGES - 3, 0, False, False, WIDTH, STAGES, mma)
    acc, _, before = sums
    acc, _ = warpgroup_mma_wait(0, deps=[acc, before])
    gl.barrier()
    return acc


@gluon.jit
def rounded_pair(first, second, dtype: gl.constexpr):
    """Both fp32, rounded to `dtype`, as fp32. Rounded together: one at a time takes an instruction of a quarter rate."""
    if dtype == gl.bfloat16:
        source: gl.constexpr = (
            "{ .reg .b32 t; cvt.rn.bf16x2.f32 t, $3, $2; .reg .b32 u;"
            " shl.b32 u, t, 16; mov.b32 $0, u; and.b32 u, t, 0xFFFF0000; mov.b32 $1, u; }"
        )
    else:
        source: gl.constexpr = (
            "{ .reg .b32 t; .reg .b16 l, h; cvt.rn.f16x2.f32 t, $3, $2; mov.b32 {l, h}, t;"
            " cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }"
        )
    return gl.inline_asm_elementwise(source, "=f,=f,f,f", [first, second], (gl.float32, gl.float32), True, 1)


@gluon.jit
def store_columns(values, buffers, out, slots, first, columns, routes, wide: gl.constexpr):
    """out[route, first:] = `values` [64 or 128, WIDTH], through buffers in shared memory that turn them round."""
    WIDTH: gl.constexpr = values.shape[1]
    if values.shape[0] == 128:
        one, other = gl.split(values.reshape([2, 64, WIDTH]).permute([1, 2, 0]))
        store_columns(one, buffers, out, slots, first, columns, routes, wide)
        store_columns(other, buffers[1:], out, slots, first + 64, columns, routes, wide)
    else:
        turned = buffers[0].slice(0, WIDTH)
        turned.permute((1, 0)).store(values)
        route = gl.load(slots + gl.arange(0, WIDTH, gl.SliceLayout(1, wide)))
        column = first + gl.arange(0, 64, gl.SliceLayout(0, wide))
        place = out + route.to(gl.int64)[:, None] * columns + column[None, :]
        gl.store(place, turned.load(wide), mask=(route < routes)[:, None] & (column < columns)[None, :])


@gluon.jit
def one_tile(
    inputs,
    out,
    slots,
    expert,
    tile,
    sizes,
    limits,
    ring,
    ROWS: gl.constexpr,
    WIDTH: gl.constexpr,
    STAGES: gl.constexpr,
    REST: gl.constexpr,
    ACTIVATION: gl.constexpr,
    WEIGHTED: gl.constexpr,
):
    x, packed, scale, global_scale, topk_weights = inputs
    N, k_steps, routes, rows_per_input = sizes
    dtype: gl.constexpr = x.dtype.element_ty
    GATED: gl.constexpr = ACTIVATION is not None
    warps: gl.constexpr = gl.num_warps()
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, WIDTH, 16])
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [warps, 1], [1, 0])
    of_codes: gl.constexpr = gl.BlockedLayout([1, 16], [16, 2], [warps, 1], [1, 0])
    of_scales: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [warps, 1], [1, 0])

    HALVES: gl.constexpr = 2 if GATED else 1
    first_row = expert * (N * HALVES)
    route = gl.load(slots + gl.arange(0, WIDTH, gl.SliceLayout(1, wide)))
    route = gl.where(route < routes, route, gl.load(slots))
    row = (route // rows_per_input).to(gl.int64)
    x += row[:, None] * (k_steps * STEP) + gl.arange(0, STEP, gl.SliceLayout(0, wide))[None, :]
    row = first_row + weight_rows(gl.arange(0, ROWS, gl.SliceLayout(1, of_codes)), tile, N, ROWS, GATED)
    packed += row[:, None] * (k_steps * (STEP // 2)) + gl.arange(0, STEP // 2, gl.SliceLayout(0, of_codes))[None, :]
    row = first_row + weight_rows(gl.arange(0, ROWS, gl.SliceLayout(1, of_scales)), tile, N, ROWS, GATED)
    scale += row[:, None] * (k_steps * (STEP // 16)) + gl.arange(0, STEP // 16, gl.SliceLayout(0, of_scales))[None, :]
    acc = multiply(ring, (x, packed, scale), k_steps, ROWS, WIDTH, STAGES, REST, mma)

    row = first_row + weight_rows(gl.arange(0, ROWS, gl.SliceLayout(1, mma)), tile, N, ROWS, GATED)
    acc = acc * LACKING * gl.load(global_scale + row)[:, None]
    if WEIGHTED:
        route = gl.load(slots + gl.arange(0, WIDTH, gl.SliceLayout(0, mma)))
        acc = acc * gl.load(topk_weights + route, mask=route < routes, other=0.0)[None, :]
    tokens, _, _ = ring
    first, second = gl.split(acc.reshape([ROWS // 16, 2, 8, WIDTH]).permute([0, 2, 3, 1]))
    COLUMNS: gl.constexpr = ROWS // 2
    first, second = first.reshape([COLUMNS, WIDTH]), second.reshape([COLUMNS, WIDTH])
    if GATED:
        alpha, limit = limits
        gate, up = rounded_pair(first, second, dtype)
        act = activate(gate, up, alpha, limit, ACTIVATION)
        store_columns(act.to(dtype), tokens, out, slots, tile * COLUMNS, N, routes, wide)
    else:
        store_columns(first.to(dtype), tokens, out, slots, tile * ROWS, N, routes, wide)
        store_columns(second.to(dtype), tokens[COLUMNS // 64 :], out, slots, tile * ROWS + COLUMNS, N, routes, wide)


@gluon.jit
def is_width(slots, routes, WIDTHS: gl.constexpr, index: gl.constexpr):
    """Whether the block's routes, which fill its first slots, take the width of this index and no smaller one."""
    fits = True
    if index > 0:
        fits = gl.load(slots + WIDTHS[index - 1]) < routes
    if index < len(WIDTHS) - 1:
        fits = fits & (gl.load(slots + WIDTHS[index]) >= routes)
    return fits


@gluon.jit(do_not_specialize=["k_steps", "routes", "rows_per_input", "activation_alpha", "activation_limit"])
def w4a16_hopper(
    x,
    packed,
    scale,
    global_scale,
    topk_weights,
    block_routes,
    block_expert,
    out,
    N,
    k_steps,
    routes,
    rows_per_input,
    activation_alpha,
    activation_limit,
    BLOCK_M: gl.constexpr,
    ROWS: gl.constexpr,
    WIDTHS: gl.constexpr,
    STAGES: gl.constexpr,
    REST: gl.constexpr,
    ACTIVATION: gl.constexpr,
    WEIGHTED: gl.constexpr,
):
    """gate_up with its activation, where there is one, else down.

    `x` has the order of K that k_of_position says, and so has what gate_up stores. N is the columns of `out`.
    """
    tiles = gl.cdiv(N, ROWS // 2 if ACTIVATION is not None else ROWS)
    block = gl.program_id(0) // tiles
    expert = gl.load(block_expert + block).to(gl.int64)
    if expert >= 0:
        ring = allocate_ring(x, scale, ROWS, BLOCK_M, STAGES)
        slots = block_routes + block.to(gl.int64) * BLOCK_M
        tile = gl.program_id(0) % tiles
        inputs, sizes = (x, packed, scale, global_scale, topk_weights), (N, k_steps, routes, rows_per_input)
        limits = (activation_alpha, activation_limit)
        for index in gl.static_range(len(WIDTHS)):
            if is_width(slots, routes, WIDTHS, index):
                one_tile(inputs, out, slots, expert, tile, sizes, limits, ring, ROWS, WIDTHS[index], STAGES, REST, ACTIVATION, WEIGHTED)
