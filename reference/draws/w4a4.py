"""Draws the order-free layers of W4A4.

Quantization forgets how its input came about: whatever the mantissas of gate and up, what enters the down GEMM is a
multiple of half a block scale, and block scales that are low are multiples of 2^-9. So nearly everything can be rich:
every other token is dense, and so are gate, up and down rows, with all codes, all scale mantissas and globals of 23
mantissa bits. Rows that do not pass the proof are drawn again, with more and more zeros.

- An input scale is the reciprocal of few bits (its own mantissa is full), so that x lies exactly between two codes in
  many blocks: ties. Half of a token's blocks are made so. The scales of a layer's other experts are smaller.
- Both input scales keep block scales near 2^-7, where e4m3 is coarse, but for tokens of larger exponents.
- Gates are so large that few lie where f is neither 0 nor the gate.
- In every block of h, one token has values that lie at the middle between two codes, or one fp32 rounding beside it.
"""

from functools import partial

import torch
from torch import Tensor

from ...contract.case import Case, Inputs, hashed, topk_ids, torch_dtype
from .. import formats, quantize
from ..formats import BLOCK
from .rows import (
    Layer,
    Rows,
    banks_of,
    blocks_of,
    first_passing,
    input_scales,
    mantissas,
    reciprocal_size,
    weight_rows,
)

ALIVE_BLOCKS = 12  # of a token, at most, about; the others are zero
BINADES = 4  # of the tokens
RECIPROCALS = (9, 10, 11, 12)  # S in units of 2^n for which fp32's 1 / (1 / S) is S again
GRID = formats.E2M1_VALUES[1:7].double()  # between code 0 and code 7, both left out
MIDPOINTS = torch.tensor(quantize.E2M1_MIDPOINTS, dtype=torch.float64)
GATE, UP, ROUTE = 2.0**17, 2.0**-7, 2.0**-3  # sizes of gates and ups, before the sum, and of routes


def draw_w4a4(case: Case) -> Inputs:
    """Inputs by the module's recipe, which pass the proof unless its last attempt failed."""
    s, key = case.shape, case.id
    stored = _reciprocal(f"{key}/S1", 2.0**-3)
    layer = Layer(case, _tokens(case), _weights(case), topk_ids(case), 1 / stored)
    gate_rows = partial(weight_rows, f"{key}/gate", s.experts, s.intermediate, s.hidden, GATE)
    gate = first_passing(gate_rows, layer.gates_pass)
    size = case.activation_limit / 256 if case.activation == "swigluoai" else UP
    up = first_passing(partial(weight_rows, f"{key}/up", s.experts, s.intermediate, s.hidden, size), layer.ups_pass)
    stored_h = _reciprocal(f"{key}/S2", reciprocal_size(layer.activated(gate.above(up))))
    up = _aimed(layer, gate, up, stored_h)
    down_rows = partial(weight_rows, f"{key}/down", s.experts, s.hidden, s.intermediate, ROUTE * stored_h.item())
    down = first_passing(down_rows, layer.down_passes(layer.activated(gate.above(up)), 1 / stored_h))
    scales = [input_scales(f"{key}/input_scale/{i}", s.experts, one) for i, one in enumerate((stored, stored_h))]
    return layer.inputs(banks_of(gate.above(up), down, *scales))


def _weights(case: Case) -> Tensor:
    return mantissas(f"{case.id}/weights", 23, case.tokens, case.shape.top_k) / 2


def _reciprocal(key: str, size: float) -> Tensor:
    """S, what a quantizer computes from an input scale of 1 / S: a number of RECIPROCALS / 8, times `size`."""
    return torch.tensor(RECIPROCALS[int(hashed(key)) % len(RECIPROCALS)] / 8 * size)


def _tokens(case: Case) -> Tensor:
    """hidden_states [T, H]: integers of as many bits as d has, times a power of two for each token.

    Half of the blocks hold midpoints between two codes: their largest value is 6 powers of two, so that the scale is S
    times a power of two, without rounding. Every second token is sparse; some blocks are zero, but the last is not.
    """
    key, blocks = f"{case.id}/x", case.shape.hidden // BLOCK
    top = {"bf16": 2**8, "fp16": 2**11}[case.dtype]
    h = hashed(key, case.tokens, blocks, BLOCK)
    kind = hashed(f"{key}/block", case.tokens, blocks, 1)
    tied = kind % 2 == 0
    amax = torch.where(tied, 3 * top // 4, top // 2 + (kind >> 8) % (top // 2))  # code 6 is 3/4, code 1 is 1/8
    midpoint = (MIDPOINTS.to(h.device) * (top // 8)).long()[(h >> 8) % len(MIDPOINTS)]
    magnitude = torch.where(tied & (h & 3 != 0), midpoint, (h >> 8) % (amax + 1))
    sparse = torch.arange(case.tokens)[:, None, None] % 2 == 1
    magnitude = torch.where(sparse & (h >> 4 & 15 != 0), 0, magnitude)
    magnitude.scatter_(2, (kind >> 24) % BLOCK, amax)
    alive = hashed(f"{key}/alive", case.tokens, blocks, 1) % blocks < ALIVE_BLOCKS
    alive[:, -1] = True
    values = torch.where(alive, magnitude, 0) * torch.where(h & 2**31 == 0, 1, -1)
    exponent = hashed(f"{key}/exponent", case.tokens, 1) % BINADES - top.bit_length() + 1
    return torch.ldexp(values.flatten(1).double(), exponent).to(torch_dtype(case.dtype))


def _aimed(layer: Layer, gate: Rows, up: Rows, stored: Tensor) -> Rows:
    """`up` with globals that put most values of one row in each block of h at the middle between two codes."""
    aimed = up.global_scale.clone()
    for part, halves in zip(layer.parts, layer.halves(gate.above(up)), strict=True):
        blocks = halves[0].shape[1] // BLOCK
        row = hashed(f"{layer.case.id}/aim/{part.expert}", blocks) % len(part.x)
        gates, ups = (blocks_of(half)[row, torch.arange(blocks)] for half in halves)  # [I/16, 16]
        aimed[part.expert] = (aimed[part.expert].double() * _factors(layer, gates, ups, stored).flatten()).float()
    return Rows(up.packed, up.scale, aimed)


def _factors(layer: Layer, gate: Tensor, up: Tensor, stored: Tensor) -> Tensor:
    """What `up` [B, 16] is to be multiplied by for h to lie at the middle between two codes; 1 where that is far.

    The largest of a block stays: it makes the scale. So does an up that is clamped, or would be.
    """
    shift, limit = (1.0, layer.activation.limit) if layer.activation.name == "swigluoai" else (0.0, torch.inf)
    gate, clamped = layer.activation.clamp(gate, up)
    f = layer.activation.f(gate)
    h = f * (clamped + shift)
    amax = h.abs().amax(-1, keepdim=True)
    unit = formats.decode_e4m3(quantize.RECIPES["vllm"].block_scale(amax.float(), stored)).double() / stored.double()
    middle = MIDPOINTS.to(h.device)[torch.bucketize(h.abs() / unit, GRID.to(h.device))]
    wanted = torch.copysign(middle * unit, h) / f - shift
    factor = wanted / up
    movable = (h.abs() < amax) & (up.abs() < limit) & (wanted.abs() < limit) & (factor > 1 / 2) & (factor < 2)
    return torch.where(movable, factor, 1.0)
