"""The sums of a tile for sm_90, W @ X^T by wgmma: weights decoded into registers, all copied through a ring. Gluon.

A program multiplies the step of K at hand while it decodes the next one's weights and copies a later one by cp.async
into a ring in shared memory. Its tokens are one part or two, each a power of two, which share the decoded weights.
The first steps' weights are on their way before it knows which its tokens are.
Triton's interpreter does not run Gluon. Device functions.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from .. import hopper
from .hopper_decode import ROWS, STEP, decode, decoded_layout

EARLY = gl.constexpr(2)  # so many steps' weights: behind those of more, the first tokens would arrive too late
LEFT_OUT = gl.constexpr(64)  # up to so many tokens a part does not copy those that are none; more have no register left

parts_of = gluon.constexpr_function(hopper.parts)


@gluon.constexpr_function
def first_slot(width, part):
    """Of a part, among the slots of its tile."""
    return sum(parts_of(width)[:part])


@gluon.constexpr_function
def mma_layout(warps, width, part):
    return gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, parts_of(width)[part], 16])


@gluon.constexpr_function
def rows_layout(warps):
    """Rows of 64 values of 16 bits, 16 bytes a thread."""
    return gl.BlockedLayout([1, 8], [4, 8], [warps, 1], [1, 0])


@gluon.constexpr_function
def rows_at_once(prepared):
    """How many rows' codes of a step follow each other in a bank."""
    return ROWS if prepared else 1


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


@gluon.jit
def part_of(tokens, x, part: gl.constexpr):
    """A part's rows of a stage."""
    first: gl.constexpr = x[0].shape[0] if part else 0
    return tokens.slice(first, x[part].shape[0])


@gluon.jit
def copy_step(ring, pointers, real, slot: gl.constexpr, ahead: gl.constexpr, PREPARED: gl.constexpr, mask=None):
    """Starts the copies of a step, `ahead` steps from where the pointers are, into a slot of the ring.

    `real` says of each part which rows are routes' own.
    """
    x, weights = pointers
    copy_tokens(ring, x, real, slot, ahead, mask)
    copy_weights(ring, weights, slot, ahead, PREPARED, mask)


@gluon.jit
def copy_tokens(ring, x, real, slot: gl.constexpr, ahead: gl.constexpr, mask):
    tokens, _, _ = ring
    for part in gl.static_range(len(x)):
        rows = mask
        if x[part].shape[0] <= LEFT_OUT:
            rows = real[part] if mask is None else real[part] & mask
        async_copy.async_load(part_of(tokens[slot], x, part), x[part] + ahead * STEP, rows)


@gluon.jit
def copy_weights(ring, weights, slot: gl.constexpr, ahead: gl.constexpr, PREPARED: gl.constexpr, mask):
    _, codes, scales = ring
    packed, scale = weights
    words: gl.constexpr = rows_at_once(PREPARED) * STEP // 8
    async_copy.async_load(codes[slot], packed + ahead * words, mask)
    async_copy.async_load(scales[slot], scale + ahead * (words // 2), mask)


@gluon.jit
def begin(ring, weights, PREPARED: gl.constexpr):
    """Starts to copy the weights of the first EARLY steps, for `multiply` to go on with."""
    for step in gl.static_range(EARLY):
        copy_weights(ring, weights, step, step, PREPARED, None)
    async_copy.commit_group()


@gluon.jit
def advanced(pointers, STAGES: gl.constexpr, PREPARED: gl.constexpr):
    """The pointers, STAGES steps on."""
    x, (packed, scale) = pointers
    words: gl.constexpr = rows_at_once(PREPARED) * STEP // 8
    rows = ()
    for part in gl.static_range(len(x)):
        rows += (x[part] + STAGES * STEP,)
    return rows, (packed + STAGES * words, scale + STAGES * (words // 2))


@gluon.jit
def decode_step(ring, slot: gl.constexpr, dtype: gl.constexpr, PREPARED: gl.constexpr, mma: gl.constexpr):
    _, codes, scales = ring
    words = codes[slot].reshape([ROWS, 4, 2])
    return decode(words, scales[slot], dtype, PREPARED, decoded_layout(gl.num_warps()), gl.DotOperandLayout(0, mma, 2))


@gluon.jit
def multiply_part(weights, tokens, acc):
    operand: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)  # the same registers for any number of tokens
    weights = gl.convert_layout(weights, operand, assert_trivial=True)
    return warpgroup_mma(weights, tokens.permute((1, 0)), acc, is_async=True)


@gluon.jit
def waited(pending: gl.constexpr, accs, before):
    """`accs` and `before` when all products but `pending` are there."""
    done = warpgroup_mma_wait(pending, deps=accs + (before,))  # noqa: RUF005 - Triton has no starred expressions
    return done[:-1], done[-1]


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
    `sums` are (accs, now, before): each part's sums, this step's weights and those that may still be read.
    """
    accs, now, before = sums
    tokens, _, _ = ring
    x, _ = pointers
    async_copy.wait_group(STAGES - 4)
    gl.barrier()
    fence_async_shared()
    started = ()
    for part in gl.static_range(len(accs)):
        started += (multiply_part(now, part_of(tokens[step % STAGES], x, part), accs[part]),)
    accs, before = waited(len(accs), started, before)
    if COPY:
        copy_step(ring, pointers, real, (step + STAGES - 2) % STAGES, step + STAGES - 2, PREPARED, copies)
    async_copy.commit_group()  # of nothing, perhaps: as many groups are pending in every step
    after = now
    if DECODE:
        after = decode_step(ring, (step + 1) % STAGES, now.dtype, PREPARED, accs[0].type.layout)
    return accs, after, now


@gluon.jit
def no_sums_of(WIDTH: gl.constexpr, part: gl.constexpr):
    return gl.zeros([ROWS, parts_of(WIDTH)[part]], gl.float32, mma_layout(gl.num_warps(), WIDTH, part))


@gluon.jit
def no_sums(WIDTH: gl.constexpr):
    accs = ()
    for part in gl.static_range(len(parts_of(WIDTH))):
        accs += (no_sums_of(WIDTH, part),)
    return accs


@gluon.jit
def multiply(
    ring, pointers, real, k_steps, WIDTH: gl.constexpr, STAGES: gl.constexpr, REST: gl.constexpr, PREPARED: gl.constexpr
):
    """Each part's sums over k_steps of K, at least STAGES - 2; REST is k_steps % STAGES, at most STAGES - 2.

    Behind `begin`. Steps are not skipped by a branch: ptxas would take wgmma apart. Hence those of REST, and a step
    that is decoded after the last where REST is 0.
    """
    gl.static_assert(REST <= STAGES - 2 and EARLY <= STAGES - 2)
    x, weights = pointers
    for step in gl.static_range(STAGES - 2):
        copy_tokens(ring, x, real, step, step, None)
        if step >= EARLY:
            copy_weights(ring, weights, step, step, PREPARED, None)
        async_copy.commit_group()
    async_copy.wait_group(STAGES - 3)
    gl.barrier()
    accs = no_sums(WIDTH)
    now = decode_step(ring, 0, x[0].dtype.element_ty, PREPARED, accs[0].type.layout)
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
