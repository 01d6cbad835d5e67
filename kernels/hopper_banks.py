"""Banks rearranged for the kernel for sm_90: of the same size, made once per layer."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..contract.banks import ExpertBanks
from .device.w4a16_hopper import weight_rows
from .hopper import CODE_BITS, K_UNIT, PREPARED_BITS, ROWS

HALVES = 0x10001  # bit 0 of both halves of a word
PIECE = 2**26  # bytes that are rearranged at once


@dataclass(frozen=True, eq=False)
class PreparedBanks(ExpertBanks):
    """ExpertBanks whose bytes stand in another order, for kernels that want it so; every other one refuses them."""


def rearranged(banks: ExpertBanks) -> PreparedBanks:
    """Tiles of ROWS rows x K_UNIT of K behind each other, as programs copy them; codes' bits as they are decoded.

    `banks`, of sizes that hopper.lacks has nothing against, are left alone. Shapes stay what they were; global scales
    and input scales are shared.
    """
    fields = dict(banks.tensors())
    for name, gated in (("gate_up", True), ("down", False)):
        kinds = f"{name}_packed", f"{name}_scale"
        fields |= zip(kinds, rearranged_bank(*(fields[kind] for kind in kinds), gated), strict=True)
    return PreparedBanks(**fields)


def rearranged_bank(packed: Tensor, scale: Tensor, gated: bool) -> tuple[Tensor, Tensor]:
    """Both of one GEMM, u8 [E, N, K/2] and e4m3 [E, N, K/16]. `gated`: N is gate's rows and then up's."""
    rows = _rows_in_tiles(packed, gated)
    return _in_tiles(packed, rows, K_UNIT // 2, moved), _in_tiles(scale, rows, K_UNIT // 16, lambda some: some)


def _rows_in_tiles(packed: Tensor, gated: bool) -> Tensor:
    """[N]: which row of an expert is at each place of its tiles."""
    rows = packed.shape[1]
    place = torch.arange(rows, device=packed.device)
    return weight_rows.fn(place % ROWS, place // ROWS, rows // 2, gated)


def _in_tiles(bank: Tensor, rows: Tensor, step_bytes: int, change: Callable[[Tensor], Tensor]) -> Tensor:
    """`bank` [E, N, bytes of a row] as [E, tiles, steps, ROWS, bytes of a step], `change` made of it; of its shape.

    A few tiles at once, which bounds the memory that this takes meanwhile.
    """
    out = torch.empty_like(bank)
    steps = bank.shape[2] // step_bytes
    at_once = ROWS * max(1, PIECE // (ROWS * bank.shape[2]))
    for one, place in zip(bank.view(torch.uint8), out.view(torch.uint8), strict=True):
        for some, part in zip(rows.split(at_once), place.split(at_once), strict=True):
            tiles = change(one[some]).view(-1, ROWS, steps, step_bytes).transpose(1, 2)
            part.view(tiles.shape).copy_(tiles)
    return out


def moved(one: Tensor) -> Tensor:
    """Codes [N, K/2] with their bits where PREPARED_BITS says."""
    words = one.view(torch.int32)
    moved = torch.zeros_like(words)
    for code, places in zip(CODE_BITS, PREPARED_BITS, strict=True):
        for bit, place in zip(code, places, strict=True):
            moved |= (words >> bit & HALVES) << place
    return moved.view(torch.uint8)
