"""Where an output is wrong, as counts in a grid of cells: small enough to keep, and for a report to draw."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

ROWS, COLUMNS = 48, 96  # of cells, at most


def counts(wrong: "Tensor") -> dict:
    """`wrong`, bool [..., columns], as {"shape": [rows, columns], "cell": [rows, columns], "wrong": [[int]]}.

    All dimensions before the last are rows. A cell has as few of each as ROWS and COLUMNS allow, a power of two, so
    that the edges of tiles are edges of cells. The last cells may reach beyond the output.
    """
    import torch

    flat = wrong.reshape(-1, wrong.shape[-1]) if wrong.dim() else wrong.reshape(1, 1)
    shape = list(flat.shape)
    cell = [_cell(size, most) for size, most in zip(shape, (ROWS, COLUMNS), strict=True)]
    (rows, height), (columns, width) = [(-(-size // step), step) for size, step in zip(shape, cell, strict=True)]
    padding = (0, columns * width - shape[1], 0, rows * height - shape[0])
    cells = torch.nn.functional.pad(flat, padding).view(rows, height, columns, width)
    return {"shape": shape, "cell": cell, "wrong": cells.sum((1, 3)).tolist()}


def _cell(size: int, most: int) -> int:
    """The least power of two of which at most `most` cover `size`."""
    step = 1
    while step * most < size:
        step *= 2
    return step
