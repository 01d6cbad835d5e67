"""Draws the order-free layers whose sum over top_k is exact also where every addition rounds to d, as atomics do.

Such a sum has 2^8 grids in bf16 and 2^11 in fp16, for all slots together, which leaves a route few bits:

- A token is +-1 in the last block and +-2 somewhere else, times a power of two. Every weight of a gate or up row is 0
  or +-1 step, in codes and scales that differ from block to block.
- A gate is 0 or +-1 step of 8192; a few are open, more than half of them in the last block of the down GEMM.
- An up is +-1 or +-3 steps, and so is what enters the down GEMM, also after quantization: its input scale makes 6 of
  the largest in a block, and 2 of a third of it.
- Down rows are as rich as their column of the output can bear: from all codes, scale mantissas and globals of three
  mantissa bits down to codes of 0 and +-0.5 under one power of two.
- Routing weights are powers of two, in fp16 times 1 or 1.5.
"""

from functools import partial

import torch
from torch import Tensor

from ...contract.case import Case, Inputs, hashed, topk_ids, torch_dtype
from .. import formats
from ..formats import BLOCK
from .rows import Layer, Rows, banks_of, first_passing, input_scales, mantissas, reciprocal_size

BINADES = 3  # of the tokens
GATE = 8192.0  # a step; a routing weight of 1/4 on the input still leaves -2048, where f is 0
OPEN_GATES = 1.5  # of a route, about, outside the last block of the intermediate
OPEN_LAST = 1 / 8  # of the gates in that block
ROUTE = 2.0**-10  # of one product with code 1
COLUMN_BINADES = 8  # of the output
SIXTHS = 1.5  # times a power of two: an input scale of 1 / that makes code 6 of a power of two
TRIES = 2  # before a column becomes coarser


def draw_atomics(case: Case) -> Inputs:
    """Inputs by the module's recipe, which pass the proof unless its last attempt failed."""
    s, key = case.shape, case.id
    quantizes = case.format == "w4a4"
    stored = torch.tensor(SIXTHS * 2.0**-4) if quantizes else None
    layer = Layer(case, _tokens(case), _weights(case), topk_ids(case), 1 / stored if quantizes else None)
    up_step = 2.0 if case.activation == "swigluoai" else 2.0**-7  # up + 1 keeps few bits
    gate = _step_rows(f"{key}/gate", GATE, _gates_used(case))
    up = _step_rows(f"{key}/up", up_step, torch.ones(s.experts, s.intermediate, s.hidden, dtype=torch.bool))
    h = layer.activated(gate.above(up))
    stored_h = torch.tensor(SIXTHS * reciprocal_size(h)) if quantizes else None
    down_rows = partial(_down_rows, f"{key}/down", s.experts, s.hidden, s.intermediate, ROUTE / (GATE * up_step))
    down = first_passing(down_rows, layer.down_passes(h, 1 / stored_h if quantizes else None))
    stored_both = (stored, stored_h) if quantizes else ()
    scales = [input_scales(f"{key}/input_scale/{i}", s.experts, one) for i, one in enumerate(stored_both)]
    return layer.inputs(banks_of(gate.above(up), down, *scales))


def _tokens(case: Case) -> Tensor:
    """hidden_states [T, H]: two nonzeros a token."""
    key, tokens, hidden = f"{case.id}/x", case.tokens, case.shape.hidden
    h = hashed(key, tokens, 4)
    last = hidden - 1 - h[:, :1] % BLOCK
    other = (last + 1 + h[:, 1:2] % (hidden - 1)) % hidden
    values = torch.tensor([1, 2]) * torch.where(h[:, :2] & 2**31 == 0, 1, -1) << h[:, 2:3] % BINADES
    x = torch.zeros(tokens, hidden, dtype=torch.int64)
    return x.scatter(1, torch.cat([last, other], dim=1), values).to(torch_dtype(case.dtype))


def _weights(case: Case) -> Tensor:
    h = hashed(f"{case.id}/weights", case.tokens, case.shape.top_k)
    weights = (1 + h % 2).float() / 4
    if case.dtype == "fp16" and not case.weight_on_input:
        weights *= 1 + (h >> 8) % 2 / 2
    return weights


def _gates_used(case: Case) -> Tensor:
    """bool [E, I, H]: which weights of the gate rows are not 0. They stand in the last block of H; half open a gate."""
    s = case.shape
    share = torch.full((s.intermediate, 1), 2 * OPEN_GATES / s.intermediate)
    share[-BLOCK:] = 2 * OPEN_LAST
    used = hashed(f"{case.id}/gates", s.experts, s.intermediate, s.hidden) < share * 2**32
    used[..., :-BLOCK] = False
    return used


def _step_rows(key: str, step: float, used: Tensor) -> Rows:
    """Rows of 0 and +-`step`, not 0 where bool `used` [E, N, K] says so.

    In each block the step is another product of a code, 1, 2 and 4 or 1.5, 3 and 6, and a scale; rows differ in the
    mantissas and exponents of their scales, and the global takes them back.
    """
    experts, rows, k = used.shape
    first = 2 + hashed(f"{key}/code", experts, rows, 1) % 2
    doublings = hashed(f"{key}/doublings", experts, rows, k // BLOCK) % 3
    code = (first + 2 * doublings).repeat_interleave(BLOCK, dim=-1)
    signs = hashed(f"{key}/signs", experts, rows, k) & 8
    codes = torch.where(used, code, 0) | signs
    top = (24 + hashed(f"{key}/scale", experts, rows, 1) % 88).to(torch.uint8)  # two doublings above the subnormals
    unit = formats.decode_e2m1(first.to(torch.uint8)) * formats.decode_e4m3(top)
    return Rows(formats.pack(codes.to(torch.uint8)), (top - 8 * doublings).to(torch.uint8), step / unit[..., 0])


def _down_rows(key: str, experts: int, rows: int, k: int, size: float, attempt: int) -> Rows:
    """Rows for one attempt, the coarser the later; a weight of code 1 times its global is `size` or larger."""
    level = attempt // TRIES
    bits, largest = max(3 - level, 0), max(7 - 2 * max(level - 3, 0), 1)
    h = hashed(f"{key}/codes/{attempt}", experts, rows, k) >> 8
    codes = ((h >> 4) % (largest + 1) | h & 8).to(torch.uint8)
    scale_mantissas = hashed(f"{key}/scale/{attempt}", experts, rows, k // BLOCK) % 2**bits << 3 - bits
    exponent = 1 + hashed(f"{key}/exponent/{attempt}", experts, rows, 1) % 14
    binade = 7 - exponent[..., 0] + hashed(f"{key}/column", rows) % COLUMN_BINADES
    global_scale = torch.ldexp(mantissas(f"{key}/global/{attempt}", bits, experts, rows) * size, binade)
    return Rows(formats.pack(codes), (8 * exponent + scale_mantissas).to(torch.uint8), global_scale)
