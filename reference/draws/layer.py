"""Order-free inputs of whole layers; the recipe for W4A16 here, those for W4A4 and for atomics beside it.

All numbers come from `hashed`, and all inputs pass orderfree.prove. In W4A16 two sums that follow each other have to
fit:

- A token has four nonzero values, +-1 or +-2, so that its products with weights of all codes and scales fit easily.
- Gate rows are coarse: 0 and +-1 times one scale. A gate is a small multiple of 4096, and f makes it itself or 0.
- So few gates are open that the products of the down rows, again of all codes and scales, fit as well. The last block
  of both sums is always in use, so that a lost tail shows.
- Block scales of one row differ in their mantissas; each row has its own exponent, which its global takes back.
- Down globals and routing weights have as many mantissa bits as the sum over top_k can bear: it is the only sum whose
  terms were rounded to d before. fp16 bears all of them, because all its numbers are multiples of 2^-24.
"""

import math

import torch
from torch import Tensor

from ...contract.banks import ExpertBanks
from ...contract.case import Case, Inputs, hashed, topk_ids, torch_dtype
from .. import formats
from ..orderfree import OrderDependent, prove
from .atomics import draw_atomics
from .rows import mantissas
from .w4a4 import draw_w4a4

NONZEROS = 4  # values of a token
OPEN_GATES = 6  # of a route, about, outside the last block
GATE_STEP = 4096.0  # a routing weight of 1/4 on the input still leaves -1024, where f is 0
MANTISSA_BITS = (23, 3, 2, 1)  # tried in this order


def draw(case: Case) -> Inputs:
    """The order-free inputs of `case`; they pass `prove`.

    Raises OrderDependent where a recipe does not fit. swigluoai needs alpha * limit >= 40, in W4A16 with fp16 also
    limit * (limit + 1) below 65504, and W4A4 has no recipe for it with atomics. A large bf16 layer with many slots has
    a sum over top_k that spreads too far.
    """
    if case.format == "w4a16" and not case.atomics:
        return _draw_w4a16(case)
    inputs = draw_atomics(case) if case.atomics else draw_w4a4(case)
    prove(inputs, case)
    return inputs


def _draw_w4a16(case: Case) -> Inputs:
    for bits in MANTISSA_BITS:
        inputs = _draw(case, bits)
        try:
            prove(inputs, case)
        except OrderDependent as error:
            reason = error
        else:
            return inputs
    raise reason


def _draw(case: Case, bits: int) -> Inputs:
    """Inputs by the module's recipe, with `bits` mantissa bits in the down globals and routing weights."""
    s, key = case.shape, case.id
    size, output = _sizes(case)
    gate = _gate_rows(f"{key}/gate", s.experts, s.intermediate, s.hidden)
    up = _weight_rows(f"{key}/up", s.experts, s.intermediate, s.hidden, size, bits=1)
    down = _weight_rows(f"{key}/down", s.experts, s.hidden, s.intermediate, output, bits)
    gate_up = [
        torch.cat([g.view(torch.uint8), u.view(torch.uint8)], dim=1) for g, u in zip(gate[:2], up[:2], strict=True)
    ]
    scale = gate_up[1].view(torch.float8_e4m3fn)
    banks = ExpertBanks(gate_up[0], scale, torch.cat([gate[2], up[2]], dim=1), *down)
    weights = mantissas(f"{key}/weights", bits, case.tokens, s.top_k) / 2
    if case.weight_on_input:  # powers of two: the gates and ups of a token keep their few bits
        weights = (1 + hashed(f"{key}/weights", case.tokens, s.top_k) % 2).float() / 4
    return Inputs(_tokens(case), banks, weights, topk_ids(case))


def _sizes(case: Case) -> tuple[float, float]:
    """Sizes of up and down weights: ups come out near 1/8 (swigluoai: some beyond its limit), routes near 2^-7."""
    if case.activation != "swigluoai":
        return 2.0**-7, 2.0**-21
    limit = 2.0 ** math.frexp(case.activation_limit)[1]  # a power of two: up + 1 keeps few bits
    return limit / 64, 2.0**-8 / limit**2


def _tokens(case: Case) -> Tensor:
    """hidden_states [T, H]: at most four nonzeros a token, one of them in the last block."""
    tokens, hidden = case.tokens, case.shape.hidden
    where = hashed(f"{case.id}/where", tokens, NONZEROS) % hidden
    where[:, 0] = hidden - formats.BLOCK + where[:, 0] % formats.BLOCK
    h = hashed(f"{case.id}/x", tokens, hidden)
    values = (1 + h % 2) * torch.where(h & 16 == 0, 1, -1)
    return torch.zeros_like(values).scatter(1, where, values.gather(1, where)).to(torch_dtype(case.dtype))


def _gate_rows(key: str, experts: int, rows: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """packed, scale and global of gate rows: codes of 0 and +-1, one normal scale a row, steps of GATE_STEP."""
    h = hashed(key, experts, rows, k)
    nonzero = (h >> 4) % (NONZEROS * rows) < 2 * OPEN_GATES  # half of these gates come out positive
    nonzero[:, -formats.BLOCK :] = (h[:, -formats.BLOCK :] >> 4) % 5 < 2
    codes = torch.where(nonzero, 2, 0) + 8 * (h & 1)
    scale = (8 + hashed(f"{key}/scale", experts, rows, 1) % 112).to(torch.uint8)
    global_scale = GATE_STEP / formats.decode_e4m3(scale)[..., 0]
    return formats.pack(codes.to(torch.uint8)), scale.repeat(1, 1, k // formats.BLOCK), global_scale


def _weight_rows(key: str, experts: int, rows: int, k: int, size: float, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """packed, scale and global of rows with all codes, all scale mantissas, and globals of `bits` mantissa bits.

    A weight times its global is of the order of `size`. The exponents of the scales span e4m3, subnormals included.
    """
    packed = (hashed(f"{key}/packed", experts, rows, k // 2) >> 8 & 0xFF).to(torch.uint8)
    exponent = hashed(f"{key}/exponent", experts, rows, 1) % 15
    mantissa = hashed(f"{key}/scale", experts, rows, k // formats.BLOCK) % 8
    scale = (8 * exponent + mantissa).clamp(min=1).to(torch.uint8).view(torch.float8_e4m3fn)
    taken_back = 7 - exponent.clamp(min=1)[..., 0]  # 0 stands for subnormals, which share the exponent of 1
    return packed, scale, torch.ldexp(mantissas(f"{key}/global", bits, experts, rows) * size, taken_back)
