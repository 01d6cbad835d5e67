"""Starts launches that go over the rows of a tensor, a block of columns a program."""

import triton
from torch import Tensor

from .arguments import check_ids, check_sizes
from .launch import Launch, start


def by_columns(launch: Launch, *, out: Tensor, **arguments) -> None:
    """Starts a pointwise launch: one program per row of `out` [R, columns] and per block of its columns.

    Raises ValueError for columns that the launch is not compiled for, TypeError or ValueError for ids that are not i32
    and contiguous.
    """
    if "topk_ids" in arguments:
        check_ids(arguments["topk_ids"])
    check_sizes(launch, columns=out.shape[1])
    grid = (out.shape[0], triton.cdiv(out.shape[1], launch.constexpr("BLOCK")))
    start(launch, grid, out=out, columns=out.shape[1], **arguments)
