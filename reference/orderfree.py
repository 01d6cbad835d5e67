"""Inputs whose layer output is the same in any order of summation, and the proof that given inputs are of that kind.

A sum of multiples of a grid g is exact in fp32, in every partial sum and every order, while the magnitudes add up to
less than 2^24 g; `prove` asks for 2^22 g, because matrix units may align their addends a little less finely. It follows
the W4A16 rounding points of reference.moe and checks each sum there. What is no sum (global scales, routing weights,
f(gate) * up) rounds in one known place, and is only asked to stay inside the range of its format; gates must lie where
every formula of the activation gives exactly 0 or the gate itself.

The recipe of `draw`, which has to make two sums fit that follow each other:
- A token has four nonzero values, +-1 or +-2, so that its products with weights of all codes and scales fit easily.
- Gate rows are coarse: 0 and +-1 times one scale. A gate is a small multiple of 4096, and f makes it itself or 0.
- So few gates are open that the products of the down rows, again of all codes and scales, fit as well. The last block
  of both sums is always in use, so that a lost tail shows.
- Block scales of one row differ in their mantissas; each row has its own exponent, which its global takes back.
- Down globals and routing weights have as many mantissa bits as the sum over top_k can bear: it is the only sum whose
  terms were rounded to d before. fp16 bears all of them, because all its numbers are multiples of 2^-24.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..contract.banks import ExpertBanks
from ..contract.case import Case, Inputs, hashed, topk_ids, torch_dtype
from . import formats, moe

LIMIT = 2.0**22  # of a sum's magnitudes, in units of its grid
FP32_NORMAL = 2.0**-126  # below it a GPU may flush to zero

NONZEROS = 4  # values of a token
OPEN_GATES = 6  # of a route, about, outside the last block
GATE_STEP = 4096.0  # a routing weight of 1/4 on the input still leaves -1024, where f is 0
MANTISSA_BITS = (23, 3, 2, 1)  # tried in this order


class OrderDependent(ValueError):
    """The inputs do not pass `prove`: some result may depend on the order of summation or on the formula."""


def draw(case: Case) -> Inputs:
    """The order-free inputs of `case`, every number from `hashed`; they pass `prove`.

    Raises OrderDependent where the recipe does not fit: swigluoai needs alpha * limit >= 40, and in fp16
    limit * (limit + 1) below 65504; a large bf16 layer with many slots has a sum over top_k that spreads too far.
    """
    for bits in MANTISSA_BITS:
        inputs = _draw(case, bits)
        try:
            prove(inputs, case)
        except OrderDependent as error:
            reason = error
        else:
            return inputs
    raise reason


def prove(inputs: Inputs, case: Case) -> None:
    """Passes if the output of `inputs` under `case`'s options has one right answer in bits; see the module.

    Raises OrderDependent with the first condition that fails: stage, place and numbers.
    """
    dtype = inputs.hidden_states.dtype
    form = moe.rounding_form("w4a16", dtype)
    banks = inputs.banks
    gate_up = formats.dequantize_blocks(banks.gate_up_packed, banks.gate_up_scale)
    down = formats.dequantize_blocks(banks.down_packed, banks.down_scale)
    gate_up_global, down_global = banks.gate_up_global.double(), banks.down_global.double()
    x, weights = inputs.hidden_states.double(), inputs.topk_weights.double()
    routes = x.new_zeros(*inputs.topk_ids.shape, banks.hidden)
    for expert, tokens, slots in moe.routes_by_expert(inputs.topk_ids, banks.experts):
        named = zip(tokens.tolist(), slots.tolist(), strict=True)
        check = _Checks(dtype, [f"expert {expert}, token {token}, slot {slot}" for token, slot in named])
        rows, w = x[tokens], weights[tokens, slots]
        if case.weight_on_input:
            check.in_range("weighted input", rows * w[:, None])
            rows, w = moe.weigh_input(rows, w, form), None
        check.sums("gate_up", rows, gate_up[expert], gate_up_global[expert])
        gate, up = moe.gate_up(rows, gate_up[expert], gate_up_global[expert], form)
        h = _activated(check, gate, up, case, form)
        check.sums("down", h, down[expert], down_global[expert], w)
        routes[tokens, slots] = moe.down(h, down[expert], down_global[expert], w, form)
    _Checks(dtype, [f"token {token}" for token in range(len(x))]).top_k(routes)


def lowest_bit(x: Tensor) -> Tensor:
    """For each float64 of `x` the largest power of two that it is a multiple of; inf for 0."""
    mantissa, exponent = torch.frexp(x)
    integer = torch.ldexp(mantissa, torch.tensor(53)).long()
    lowest = torch.ldexp((integer & -integer).double(), exponent - 53)
    return torch.where(x == 0, torch.inf, lowest)


def _activated(check: "_Checks", gate: Tensor, up: Tensor, case: Case, form: moe.Rounding) -> Tensor:
    """The activation's result [R, I], after the checks of its gates and its range."""
    activation = moe.Activation(case.activation, case.activation_alpha, case.activation_limit)
    clamped, _ = activation.clamp(gate, up)
    check.saturated(clamped, activation)
    h = moe.activate(gate, up, activation, form)
    check.in_range("activation", h)
    return h


@dataclass(frozen=True)
class _Checks:
    """The conditions on tensors [R, N] of one stage; `places` names their R rows in messages."""

    dtype: torch.dtype
    places: Sequence[str]

    def require(self, ok: Tensor, stage: str, problem: str, **numbers: Tensor) -> None:
        """Raises OrderDependent for the first element that is not `ok`, with its numbers."""
        if ok.all():
            return
        row, column = (~ok).nonzero()[0].tolist()
        values = ", ".join(f"{name} = {tensor[row, column].item():g}" for name, tensor in numbers.items())
        raise OrderDependent(f"{stage}: {problem} at {self.places[row]}, column {column}: {values}")

    def sums(self, stage: str, x: Tensor, weight: Tensor, global_scale: Tensor, w: Tensor | None = None) -> None:
        """The sums x @ weight^T are exact, and times their global and route weight they stay in range."""
        grid = lowest_bit(x).amin(1)[:, None] * lowest_bit(weight).amin(1)
        self.magnitudes(f"{stage} sum", x.abs() @ weight.abs().T, grid)
        scaled = (x @ weight.T) * global_scale
        self.normal(f"{stage} sum * global", scaled)
        self.in_range(f"{stage} result", scaled if w is None else scaled * w[:, None])

    def top_k(self, routes: Tensor) -> None:
        """The sums over the slots of `routes` [T, top_k, H] are exact and in range."""
        self.magnitudes("top_k sum", routes.abs().sum(1), lowest_bit(routes).amin(1))
        self.in_range("output", routes.sum(1))

    def magnitudes(self, stage: str, total: Tensor, grid: Tensor) -> None:
        self.require(grid >= FP32_NORMAL, stage, "grid below fp32's normal range", g=grid)
        limit = LIMIT * grid
        self.require(total < limit, stage, "magnitudes too large for their grid", g=grid, sum=total, limit=limit)

    def normal(self, stage: str, value: Tensor) -> None:
        self.require((value == 0) | (value.abs() >= FP32_NORMAL), stage, "below fp32's normal range", value=value)

    def in_range(self, stage: str, value: Tensor) -> None:
        self.normal(stage, value)
        self.require(value.float().to(self.dtype).isfinite(), stage, f"not finite in {self.dtype}", value=value)

    def saturated(self, gate: Tensor, activation: moe.Activation) -> None:
        """f(gate) is exactly 0 or the gate, in fp32 and by every formula; sigmoid and erf have the limits measured."""
        alpha = activation.alpha if activation.name == "swigluoai" else 1.0
        lowest, highest = (-16.0, 10.0) if activation.name in ("gelu", "gelu_tanh") else (-1024.0, 40.0)
        z = alpha * gate
        ok = (z == 0) | (z >= highest) | (z <= lowest)
        problem = f"alpha * gate should be 0, at least {highest:g} or at most {lowest:g}"
        self.require(ok, f"{activation.name} gate", problem, gate=gate, alpha=torch.full_like(gate, alpha))


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
    weights = _mantissas(f"{key}/weights", bits, case.tokens, s.top_k) / 2
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
    return packed, scale, torch.ldexp(_mantissas(f"{key}/global", bits, experts, rows) * size, taken_back)


def _mantissas(key: str, bits: int, *shape: int) -> Tensor:
    """Float32 in [1, 2) with `bits` of the 23 mantissa bits in use."""
    return 1 + (hashed(key, *shape) >> (32 - bits)).float() / 2.0**bits
