"""What stands around the two GEMMs: weights on the input, activation, sum over top_k. Triton device functions."""

import triton
import triton.language as tl

_SQRT_HALF = tl.constexpr(0.7071067811865476)
_TWICE_SQRT_2_OVER_PI = tl.constexpr(1.5957691216057308)


@triton.jit
def _sigmoid(x):
    return tl.div_rn(1.0, 1.0 + tl.exp(-x))


@triton.jit
def activate(gate, up, alpha, limit, ACTIVATION: tl.constexpr):
    """The gated activation of fp32 `gate` and `up`: f(gate) * up.

    "silu"; "gelu" with erf; "gelu_tanh", whose (1 + tanh(y)) / 2 is sigmoid(2y); "swigluoai": gate clamped from above
    and up from both sides by `limit`, then (up + 1) * gate * sigmoid(alpha * gate), as published with gpt-oss.
    """
    if ACTIVATION == "silu":
        result = gate * _sigmoid(gate) * up
    elif ACTIVATION == "gelu":
        result = gate * (0.5 * (1.0 + tl.erf(gate * _SQRT_HALF))) * up
    elif ACTIVATION == "gelu_tanh":
        result = gate * _sigmoid((gate + 0.044715 * gate * gate * gate) * _TWICE_SQRT_2_OVER_PI) * up
    else:
        tl.static_assert(ACTIVATION == "swigluoai")
        gate = tl.where(gate > limit, limit, gate)  # comparisons, not min and max: a NaN stays
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
        result = gate * _sigmoid(alpha * gate) * (up + 1.0)
    return result


@triton.jit(do_not_specialize=["experts", "alpha", "limit"])
def gated_activation(
    gate_up, topk_ids, out, columns, experts, alpha, limit, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr
):
    """out[route, i] from gate_up[route, i] and gate_up[route, columns + i]; rows of dropped routes are left alone."""
    route = tl.program_id(0).to(tl.int64)
    expert = tl.load(topk_ids + route)
    if (expert < 0) | (expert >= experts):
        return
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    gate = tl.load(gate_up + route * 2 * columns + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + route * 2 * columns + columns + column, mask=inside, other=0.0).to(tl.float32)
    result = activate(gate, up, alpha, limit, ACTIVATION)
    tl.store(out + route * columns + column, result.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["top_k", "experts"])
def sum_routes(route_out, topk_ids, out, columns, top_k, experts, BLOCK: tl.constexpr):
    """out[token] = the sum of the token's routes in slot order, in fp32; a dropped route counts as exact zeros."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    total = tl.zeros((BLOCK,), tl.float32)
    for slot in range(0, top_k):
        route = token * top_k + slot
        expert = tl.load(topk_ids + route)
        kept = inside & (expert >= 0) & (expert < experts)
        total += tl.load(route_out + route * columns + column, mask=kept, other=0.0).to(tl.float32)
    tl.store(out + token * columns + column, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["top_k"])
def weigh_input(x, topk_weights, out, columns, top_k, BLOCK: tl.constexpr):
    """out[route] = x[route // top_k] * topk_weights[route], in fp32."""
    route = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    row = tl.load(x + route // top_k * columns + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(
        out + route * columns + column, (row * tl.load(topk_weights + route)).to(out.dtype.element_ty), mask=inside
    )


@triton.jit
def interleave_k(x, out, columns, BLOCK: tl.constexpr):
    """out[row, 64 g + 16 s + 8 h + 2 t + j] = x[row, 64 g + 16 t + 8 h + 4 j + s]: the order of hopper.k_of_position.

    `columns` is a multiple of 64, as is BLOCK.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + column, mask=column < columns, other=0.0)
    values = values.reshape(BLOCK // 64, 4, 2, 2, 4).permute(0, 4, 2, 1, 3).reshape(BLOCK)
    tl.store(out + row * columns + column, values, mask=column < columns)
