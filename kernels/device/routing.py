"""Sorts routes by expert into padded blocks, on the device and without atomics. Triton device functions.

A route is one (token, slot) pair, numbered token * top_k + slot. Every expert's routes fill whole blocks of BLOCK_M
slots, in ascending order of route; a slot without a route holds `routes`, one past the last. Routes whose expert id is
outside [0, experts) are in no block. Four launches: count_routes, scan_counts, list_blocks, place_routes.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["routes", "experts"])
def count_routes(topk_ids, counts, routes, experts, CHUNK: tl.constexpr, BLOCK_E: tl.constexpr):
    """counts[chunk, e]: how many of the chunk's CHUNK routes name expert e."""
    chunk = tl.program_id(0)
    route = chunk * CHUNK + tl.arange(0, CHUNK)
    expert = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)
    named = tl.load(topk_ids + route, mask=route < routes, other=-1)
    count = tl.sum((named[:, None] == expert[None, :]).to(tl.int32), axis=0)
    tl.store(counts + chunk * experts + expert, count, mask=expert < experts)


@triton.jit(do_not_specialize=["chunks", "experts"])
def scan_counts(counts, totals, chunks, experts, BLOCK_C: tl.constexpr, BLOCK_E: tl.constexpr):
    """Replaces counts[chunk, e] by the number of expert e's routes in earlier chunks; totals[e] counts them all."""
    expert = tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E)
    before = tl.zeros((BLOCK_E,), tl.int32)
    for start in range(0, chunks, BLOCK_C):
        chunk = start + tl.arange(0, BLOCK_C)
        cell = counts + chunk[:, None] * experts + expert[None, :]
        inside = (chunk < chunks)[:, None] & (expert < experts)[None, :]
        count = tl.load(cell, mask=inside, other=0)
        tl.store(cell, before[None, :] + tl.cumsum(count, axis=0) - count, mask=inside)
        before += tl.sum(count, axis=0)
    tl.store(totals + expert, before, mask=expert < experts)


@triton.jit(do_not_specialize=["routes", "experts"])
def list_blocks(
    totals, first_slot, block_expert, block_routes, routes, experts, BLOCK_M: tl.constexpr, EXPERTS: tl.constexpr
):
    """block_expert[block], -1 where the block is not needed, and the slots of `block_routes` that stay without a route.

    first_slot[e] is where expert e's first block begins. EXPERTS is a power of two and at least `experts`.
    """
    block = tl.program_id(0)
    expert = tl.arange(0, EXPERTS)
    total = tl.load(totals + expert, mask=expert < experts, other=0)
    blocks = tl.cdiv(total, BLOCK_M)
    end = tl.cumsum(blocks, axis=0)
    tl.store(first_slot + expert, (end - blocks) * BLOCK_M, mask=(expert < experts) & (block == 0))

    mine = (end - blocks <= block) & (block < end)  # at most one expert
    tl.store(block_expert + block, tl.sum(tl.where(mine, expert + 1, 0), axis=0) - 1)
    filled = tl.sum(tl.where(mine, total - (block - (end - blocks)) * BLOCK_M, 0), axis=0)
    slot = tl.arange(0, BLOCK_M)
    tl.store(block_routes + block * BLOCK_M + slot, tl.zeros((BLOCK_M,), tl.int32) + routes, mask=slot >= filled)


@triton.jit(do_not_specialize=["routes", "experts"])
def place_routes(topk_ids, counts, first_slot, block_routes, routes, experts, CHUNK: tl.constexpr):
    """Puts each of the chunk's routes into its expert's blocks, behind those of earlier chunks."""
    chunk = tl.program_id(0)
    lane = tl.arange(0, CHUNK)
    route = chunk * CHUNK + lane
    expert = tl.load(topk_ids + route, mask=route < routes, other=-1)
    valid = (expert >= 0) & (expert < experts)
    # The same addresses again as a row: how many earlier lanes name the same expert is this route's rank.
    other = tl.load(topk_ids + chunk * CHUNK + lane[None, :], mask=(chunk * CHUNK + lane < routes)[None, :], other=-1)
    rank = tl.sum(((expert[:, None] == other) & (lane[None, :] < lane[:, None])).to(tl.int32), axis=1)
    slot = tl.load(first_slot + expert, mask=valid, other=0) + tl.load(
        counts + chunk * experts + expert, mask=valid, other=0
    )
    tl.store(block_routes + slot + rank, route, mask=valid)
