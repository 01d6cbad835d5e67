"""What all grouped GEMMs do with a block of routes: find its rows, and store its sums. Triton device functions.

Index tensors come shaped against the accumulator, such as [1, BLOCK_M] or [BLOCK_M, 1], so that a form is free to
have routes as rows or as columns.
"""

import triton
import triton.language as tl


@triton.jit
def routes_of(block, block_routes, routes, rows_per_input, BLOCK_M: tl.constexpr):
    """(route, real, row): the block's routes, which of them are any, and the rows of the input that they read."""
    route = tl.load(block_routes + block * BLOCK_M + tl.arange(0, BLOCK_M))
    return route, route < routes, (route // rows_per_input).to(tl.int64)


@triton.jit
def store_sums(sums, global_scale, topk_weights, out, N, route, real, n, inside, weight_row, WEIGHTED: tl.constexpr):
    """out[route, n] = sums * global (* topk_weight if WEIGHTED), each product rounded to fp32, then once to `out`."""
    sums = scaled_sums(sums, global_scale, topk_weights, route, real, inside, weight_row, WEIGHTED)
    tl.store(out + route.to(tl.int64) * N + n, sums.to(out.dtype.element_ty), mask=real & inside)


@triton.jit
def add_sums(
    sums, global_scale, topk_weights, out, N, route, token, real, n, inside, weight_row, WEIGHTED: tl.constexpr
):
    """Adds to out[token, n] what store_sums stores, by atomics: in any order, each addition rounded to `out`."""
    sums = scaled_sums(sums, global_scale, topk_weights, route, real, inside, weight_row, WEIGHTED)
    place = out + token.to(tl.int64) * N + n
    tl.atomic_add(place, sums.to(out.dtype.element_ty), mask=real & inside, sem="relaxed")


@triton.jit
def scaled_sums(sums, global_scale, topk_weights, route, real, inside, weight_row, WEIGHTED: tl.constexpr):
    """sums * global (* topk_weight if WEIGHTED), each product rounded to fp32."""
    sums = sums * tl.load(global_scale + weight_row, mask=inside, other=0.0)
    if WEIGHTED:
        sums = sums * tl.load(topk_weights + route, mask=real, other=0.0)
    return sums
