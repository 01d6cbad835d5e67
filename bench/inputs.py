"""What a layer is timed on: random banks and routing, by integer hashing, so that a digest is the same on every GPU.

Never zeros: a card that multiplies zeros draws less power and clocks higher.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..contract.banks import ExpertBanks
from ..contract.case import Case, hashed, random_inputs, torch_dtype
from .points import Layer

PIECE = 2**22  # elements that are drawn at once
BELL = 37_837  # standard deviation of the sum of four 16-bit integers


@dataclass(frozen=True, eq=False)
class Inputs:
    """One layer's call: `hidden_states` [T, H], `topk_weights` f32 and `topk_ids` i32 [T, top_k]; all on one device.

    `banks` have input scales; kernels that leave activations alone get `banks.without_input_scales()`.
    """

    layer: Layer
    banks: ExpertBanks
    hidden_states: Tensor
    topk_weights: Tensor
    topk_ids: Tensor

    @property
    def tokens(self) -> int:
        return len(self.hidden_states)

    @property
    def options(self) -> dict:
        """The keyword arguments of Kernel.run."""
        return {"activation": self.layer.activation}

    def first(self, tokens: int) -> "Inputs":
        """The same layer on its first `tokens` tokens."""
        rows = (self.hidden_states, self.topk_weights, self.topk_ids)
        return Inputs(self.layer, self.banks, *(tensor[:tokens] for tensor in rows))

    def experts_hit(self) -> int:
        """How many experts some route names."""
        return len(self.topk_ids.unique())


def draw(layer: Layer, tokens: int, device: str, dtype: str = "bf16") -> Inputs:
    """Banks of `layer`, and `tokens` tokens of `dtype`, each routed to top_k distinct experts drawn evenly."""
    shape, key = layer.shape, f"bench/{layer.name}"
    with torch.device(device):
        banks = random_inputs(Case(shape, 1, inputs="random", format="w4a4")).banks
        hidden = bell(f"{key}/x", tokens, shape.hidden, dtype)
        weights = _by_rows(tokens, shape.top_k, lambda n, at: hashed(f"{key}/weights/{at}", n, shape.top_k) % 2**16)
        ids = _by_rows(tokens, shape.experts, lambda n, at: _ids(f"{key}/ids/{at}", n, layer))
    weights = weights.float() + 2**14
    return Inputs(layer, banks, hidden, weights / weights.sum(1, keepdim=True), ids.contiguous())


def bell(key: str, rows: int, columns: int, dtype: str = "bf16") -> Tensor:
    """Nearly unit-normal [rows, columns] of `dtype`, on torch's default device. Fewer rows are the first of more."""

    def some(count: int, at: int) -> Tensor:
        drawn = (hashed(f"{key}/{at}", count, columns, 4) >> 16).sum(-1) - 2 * 0xFFFF
        return (drawn.float() / BELL).to(torch_dtype(dtype))

    return _by_rows(rows, 4 * columns, some)


def _ids(key: str, tokens: int, layer: Layer) -> Tensor:
    order = hashed(key, tokens, layer.shape.experts).argsort(dim=1, stable=True)
    return order[:, : layer.shape.top_k].to(torch.int32)


def _by_rows(rows: int, row: int, some) -> Tensor:
    """[rows, ...], made by `some(count, first row)`, a piece at a time; `row` elements are drawn for each."""
    count = max(PIECE // row, 1)
    return torch.cat([some(min(count, rows - first), first) for first in range(0, rows, count)])
