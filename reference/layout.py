"""Layouts of block scales: linear, as checkpoints store them, and in the tiles that FP4 matrix units read.

Both tilings cut the scales [N, K/16] into tiles of R rows x 4 columns, padded below and on the right, and store tile
after tile, each row of tiles from left to right. Inside a tile, row r and column c is byte

    128x4:  (r % 32) * 16 + (r // 32) * 4 + c    cuBLAS's layout of 1D block scales: four groups of 32 rows interleave
    8x4:    r * 4 + c                            FlashInfer's and TensorRT-LLM's layout for few rows
"""

import torch
from torch import Tensor

from . import formats

TILE_ROWS = {"128x4": 128, "8x4": 8}
TILE_COLUMNS = 4


def tiled_size(rows: int, columns: int, layout: str) -> int:
    """The bytes of scales [rows, columns] in `layout`, padding included. Raises ValueError for an unknown layout."""
    height = _tile_rows(layout)
    return -(-rows // height) * height * -(-columns // TILE_COLUMNS) * TILE_COLUMNS


def places(rows: int, columns: int, layout: str) -> Tensor:
    """The byte, int64 [rows, columns], at which `layout` holds each scale. Raises ValueError for an unknown layout."""
    height = _tile_rows(layout)
    row, column = torch.arange(rows)[:, None], torch.arange(columns)
    tile = row // height * -(-columns // TILE_COLUMNS) + column // TILE_COLUMNS
    r, c = row % height, column % TILE_COLUMNS
    inside = r % 32 * 16 + r // 32 * 4 + c if layout == "128x4" else r * 4 + c
    return tile * (height * TILE_COLUMNS) + inside


def to_tiled(scale: Tensor, layout: str) -> Tensor:
    """Linear scales [..., N, K/16] as bytes [..., tiled_size] of "128x4" or "8x4"; padding is 0x00.

    `scale` is uint8 or float8_e4m3fn, and so is the result. Raises TypeError for another dtype, ValueError for an
    unknown layout or fewer than two dimensions.
    """
    formats.check_dtype("scale", scale, torch.uint8, torch.float8_e4m3fn)
    if scale.dim() < 2:
        raise ValueError(f"scale has shape {list(scale.shape)}, but should have rows and columns")
    rows, columns = scale.shape[-2:]
    tiled = scale.new_zeros(*scale.shape[:-2], tiled_size(rows, columns, layout), dtype=torch.uint8)
    tiled[..., places(rows, columns, layout).to(scale.device)] = scale.view(torch.uint8)
    return tiled.view(scale.dtype)


def from_tiled(tiled: Tensor, rows: int, columns: int, layout: str) -> Tensor:
    """The linear scales [..., rows, columns] of bytes [..., tiled_size]; the inverse of `to_tiled`, blind to padding.

    `tiled` is uint8 or float8_e4m3fn, and so is the result. Raises TypeError for another dtype, ValueError for an
    unknown layout or a size that does not fit.
    """
    formats.check_dtype("tiled", tiled, torch.uint8, torch.float8_e4m3fn)
    size = tiled_size(rows, columns, layout)
    if tiled.dim() == 0 or tiled.shape[-1] != size:
        shape = list(tiled.shape)
        raise ValueError(f"tiled has shape {shape}, but {rows} x {columns} scales in {layout} should take {size} bytes")
    return tiled.view(torch.uint8)[..., places(rows, columns, layout).to(tiled.device)].view(tiled.dtype)


def _tile_rows(layout: str) -> int:
    if layout not in TILE_ROWS:
        raise ValueError(f"layout is {layout!r}, but should be one of {', '.join(TILE_ROWS)}")
    return TILE_ROWS[layout]
