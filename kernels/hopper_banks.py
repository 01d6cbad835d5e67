"""Banks rearranged for the kernel for sm_90: of the same size, made once per layer."""

from dataclasses import replace

import torch
from torch import Tensor

from ..contract.banks import ExpertBanks
from .hopper import CODE_BITS, K_UNIT, PREPARED_BITS, ROWS, row_of_place

HALVES = 0x10001  # bit 0 of both halves of a word


def rearranged(banks: ExpertBanks) -> ExpertBanks:
    """Tiles of ROWS rows x K_UNIT of K, one after the other, each as a program copies it; codes' bits as it decodes them.

    The shapes are those of `banks`, which are left alone; global scales and input scales are shared.
    """
    gate_up, down = _places(banks.gate_up_packed, gated=True), _places(banks.down_packed, gated=False)
    return replace(
        banks,
        gate_up_packed=_tiled(_with_bits(banks.gate_up_packed), gate_up),
        gate_up_scale=_tiled(banks.gate_up_scale, gate_up),
        down_packed=_tiled(_with_bits(banks.down_packed), down),
        down_scale=_tiled(banks.down_scale, down),
    )


def _places(packed: Tensor, gated: bool) -> Tensor:
    """[N]: the row of an expert that is at each place of its tiles."""
    rows = packed.shape[1]
    places = [row_of_place(at % ROWS, at // ROWS, rows // 2, gated) for at in range(rows)]
    return torch.tensor(places, device=packed.device)


def _tiled(bank: Tensor, places: Tensor) -> Tensor:
    """`bank` [E, N, bytes of a row], expert by expert, which bounds the memory that this takes for a while."""
    out = torch.empty_like(bank)
    steps = bank.shape[2] // (K_UNIT // (2 if bank.dtype == torch.uint8 else 16))
    for one, place in zip(bank.view(torch.uint8), out.view(torch.uint8), strict=True):
        tiles = one[places].view(-1, ROWS, steps, bank.shape[2] // steps).transpose(1, 2)
        place.view(tiles.shape).copy_(tiles)
    return out


def _with_bits(packed: Tensor) -> Tensor:
    out = torch.empty_like(packed)
    for one, place in zip(packed.view(torch.int32), out.view(torch.int32), strict=True):
        place.zero_()
        for code, prepared in zip(CODE_BITS, PREPARED_BITS, strict=True):
            for bit, other in zip(code, prepared, strict=True):
                place |= (one >> bit & HALVES) << other
    return out
