"""What the recipes of draw share: weight rows, each drawn again until it passes, and the layer that they enter."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...contract.banks import ExpertBanks
from ...contract.case import Case, Inputs, hashed, torch_dtype
from .. import formats, moe
from ..activations import Activation
from ..orderfree import Condition, added, gemm, passing, saturated
from ..rounding import rounding_form

ATTEMPTS = 24
MOST_HALVINGS = 5  # of the codes of a row


@dataclass(frozen=True, eq=False)
class Rows:
    """Weight rows of E experts: `packed` u8 [E, N, K/2], `scale` u8 [E, N, K/16], `global_scale` f32 [E, N]."""

    packed: Tensor
    scale: Tensor
    global_scale: Tensor

    def weights(self) -> Tensor:
        """float64 [E, N, K], without the global scale."""
        return formats.dequantize_blocks(self.packed, self.scale)

    def alpha(self, input_scale: Tensor | None) -> Tensor:
        """float64 [E, N]: what multiplies the sums; `input_scale` is the layer's, 0-dim, None without quantization."""
        if input_scale is None:
            return self.global_scale.double()
        return (input_scale.double() * self.global_scale.double()).float().double()

    def replaced(self, which: Tensor, new: "Rows") -> "Rows":
        """These rows, but those of `new` where bool [E, N] `which` says so."""
        packed, scale = (
            torch.where(which[..., None], getattr(new, name), getattr(self, name)) for name in ("packed", "scale")
        )
        return Rows(packed, scale, torch.where(which, new.global_scale, self.global_scale))

    def above(self, other: "Rows") -> "Rows":
        """These rows, and behind them in each expert those of `other`."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Rows(*(torch.cat(pair, dim=1) for pair in pairs))


def banks_of(gate_up: Rows, down: Rows, *input_scales: Tensor) -> ExpertBanks:
    """The banks of these rows; `input_scales` are gate_up's and down's, f32 [E], or none."""
    tensors = [(rows.packed, rows.scale.view(torch.float8_e4m3fn), rows.global_scale) for rows in (gate_up, down)]
    return ExpertBanks(*tensors[0], *tensors[1], *input_scales)


def first_passing(make: Callable[[int], Rows], passes: Callable[[Rows], Tensor]) -> Rows:
    """Each row from the first attempt with which it passes: `make(attempt)` draws rows, `passes` gives bool [E, N].

    A row that never passes stays as the last attempt made it, for the proof of the whole to name what is wrong.
    """
    rows = make(0)
    for attempt in range(1, ATTEMPTS):
        missing = ~passes(rows)
        if not missing.any():
            break
        rows = rows.replaced(missing, make(attempt))
    return rows


def weight_rows(key: str, experts: int, rows: int, k: int, size: float, attempt: int, binades: int = 1) -> Rows:
    """Rows with all codes, all scale mantissas and full globals; a weight times its global is of the order of `size`.

    The scales of a row lie in so many `binades`, in one less with each attempt; each later attempt has half as many
    codes. The rows' own exponents span e4m3, subnormals included, and the globals take them back.
    """
    spread, halvings = max(binades - attempt, 1), min(max(attempt - binades + 1, 0), MOST_HALVINGS)
    h = hashed(f"{key}/codes/{attempt}", experts, rows, k) >> 8
    codes = torch.where((h >> 4) % 2**halvings == 0, h & 15, 0).to(torch.uint8)
    lowest = hashed(f"{key}/exponent/{attempt}", experts, rows, 1) % (16 - spread)
    of_block = hashed(f"{key}/scale/{attempt}", experts, rows, k // formats.BLOCK)
    scale = 8 * (lowest + (of_block >> 8) % spread) + of_block % 8
    taken_back = 7 - lowest.clamp(min=1)[..., 0]  # 0 stands for subnormals, which share the exponent of 1
    full = mantissas(f"{key}/global/{attempt}", 23, experts, rows) * size
    return Rows(formats.pack(codes), scale.clamp(1, 0x7E).to(torch.uint8), torch.ldexp(full, taken_back))


def mantissas(key: str, bits: int, *shape: int) -> Tensor:
    """Float32 in [1, 2) with `bits` of the 23 mantissa bits in use."""
    return 1 + (hashed(key, *shape) >> (32 - bits)).float() / 2.0**bits


def input_scales(key: str, experts: int, stored: Tensor) -> Tensor:
    """f32 [E], of which one, the largest, is 1 / `stored`; the others have at least half of it."""
    shares = 1 - (hashed(key, experts) >> 9).float() / 2**24
    shares[int(hashed(f"{key}/largest")) % experts] = 1
    return shares / stored


def reciprocal_size(h: list[Tensor]) -> float:
    """A power of two for S with which about a tenth of the blocks of `h` have scales below 2^-8."""
    amax = torch.cat([blocks_of(rows).abs().amax(-1).flatten() for rows in h])
    amax = amax[amax > 0].sort().values
    return 2.0 ** round(math.log2(6 * 2.0**-8 / amax[len(amax) // 10].item()))


def blocks_of(x: Tensor) -> Tensor:
    """`x` [..., K] as [..., K/16, 16]."""
    return x.unflatten(-1, (-1, formats.BLOCK))


@dataclass(frozen=True, eq=False)
class _Part:
    """One expert's routes: what enters its gate_up GEMM, and the weights behind its down GEMM."""

    expert: int
    tokens: Tensor
    slots: Tensor
    x: Tensor
    w: Tensor | None


class Layer:
    """A case's tokens and routes on their way through rows that are still being drawn."""

    def __init__(self, case: Case, x: Tensor, weights: Tensor, ids: Tensor, input_scale: Tensor | None):
        """`input_scale`: gate_up's of the layer, 0-dim, None in W4A16."""
        self.case, self.x, self.topk_weights, self.ids, self.input_scale = case, x, weights, ids, input_scale
        self.form = rounding_form(case.format, x.dtype)
        options = (case.activation, case.activation_alpha, case.activation_limit)
        self.activation = Activation.of_options(*options, self.form)
        self.parts = [self._part(*found) for found in moe.routes_by_expert(ids, case.shape.experts)]

    def _part(self, expert: int, tokens: Tensor, slots: Tensor) -> _Part:
        x, w = self.x[tokens].double(), self.topk_weights[tokens, slots].double()
        if self.case.weight_on_input:
            x, w = moe.weigh_input(x, w, self.form), None
        return _Part(expert, tokens, slots, moe.enter(x, self.input_scale, self.form), w)

    def inputs(self, banks: ExpertBanks) -> Inputs:
        return Inputs(self.x, banks, self.topk_weights, self.ids)

    def gates_pass(self, gate: Rows) -> Tensor:
        """bool [E, I]: the sums of these gate rows are exact, and the gates saturate."""
        return self._rows_pass(gate, lambda result: saturated(result, result, self.activation))

    def ups_pass(self, up: Rows) -> Tensor:
        """bool [E, I]: the sums of these up rows are exact."""
        return self._rows_pass(up, lambda result: [])

    def _rows_pass(self, rows: Rows, conditions: Callable[[Tensor], list[Condition]]) -> Tensor:
        weights, alpha = rows.weights(), rows.alpha(self.input_scale)
        ok = torch.ones(rows.global_scale.shape, dtype=torch.bool)
        for part in self.parts:
            e = part.expert
            found = [*gemm("", part.x, weights[e], alpha[e], self.case.format, torch.float32)]
            result, _ = moe.gate_up(part.x, weights[e].repeat(2, 1), alpha[e].repeat(2), self.form)
            ok[e] = passing([*found, *conditions(result)])
        return ok

    def halves(self, gate_up: Rows) -> list[tuple[Tensor, Tensor]]:
        """gate and up of each part, float64 [R, I]."""
        weights, alpha = gate_up.weights(), gate_up.alpha(self.input_scale)
        return [moe.gate_up(part.x, weights[part.expert], alpha[part.expert], self.form) for part in self.parts]

    def activated(self, gate_up: Rows) -> list[Tensor]:
        """What the activation makes of each part, float64 [R, I]."""
        return [moe.activate(gate, up, self.activation, self.form) for gate, up in self.halves(gate_up)]

    def down_passes(self, h: list[Tensor], input_scale: Tensor | None) -> Callable[[Rows], Tensor]:
        """For down rows bool [1, H], one column of the output each: all sums that end in it are exact.

        `h` is what `activated` gave; `input_scale` is down's.
        """
        entered = [moe.enter(rows, input_scale, self.form) for rows in h]
        dtype = torch_dtype(self.case.dtype)

        def passes(down: Rows) -> Tensor:
            weights, alpha = down.weights(), down.alpha(input_scale)
            routes = torch.zeros(*self.ids.shape, weights.shape[1], dtype=torch.float64)
            ok = []
            for part, rows in zip(self.parts, entered, strict=True):
                stage = (rows, weights[part.expert], alpha[part.expert])
                ok.append(passing(gemm("", *stage, self.case.format, dtype, part.w)))
                routes[part.tokens, part.slots] = moe.down(*stage, part.w, self.form)
            return torch.stack([*ok, passing(added(routes, dtype, self.case.atomics))]).all(0, keepdim=True)

        return passes
