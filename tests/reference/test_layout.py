"""Scale layouts, against the byte formula in plain loops and against literal places."""

import itertools

import pytest
import torch

from nvfp4_suite.contract.case import hashed
from nvfp4_suite.reference.layout import TILE_ROWS, from_tiled, places, tiled_size, to_tiled

LAYOUTS = tuple(TILE_ROWS)
ROWS, COLUMNS = (1, 127, 128, 129), (1, 4, 5, 9)
POISON = 0x7F


def scales(*shape: int) -> torch.Tensor:
    """Bytes without 0x00, which padding is, and without the poison."""
    return (hashed(f"scales {shape}", *shape) % 0x7E + 1).to(torch.uint8)


def formula(layout: str, m: int, k: int, columns: int) -> int:
    """The byte of row m and scale column k, in single steps."""
    tiles_across = (columns + 3) // 4
    if layout == "128x4":
        tile = m // 128 * tiles_across + k // 4
        return tile * 512 + m % 32 * 16 + m // 32 % 4 * 4 + k % 4
    return (m // 8 * tiles_across + k // 4) * 32 + m % 8 * 4 + k % 4


def tiled_by_loops(scale: list[list[int]], layout: str, padding: int) -> list[int]:
    rows, columns = len(scale), len(scale[0])
    tiled = [padding] * tiled_size(rows, columns, layout)
    for m, k in itertools.product(range(rows), range(columns)):
        tiled[formula(layout, m, k, columns)] = scale[m][k]
    return tiled


# (layout, columns of the whole, row, column, byte), counted by hand
PLACES = [
    ("128x4", 4, 0, 3, 3),
    ("128x4", 4, 1, 0, 16),
    ("128x4", 4, 31, 3, 499),
    ("128x4", 4, 32, 0, 4),
    ("128x4", 4, 64, 1, 9),
    ("128x4", 4, 127, 3, 511),
    ("128x4", 5, 0, 4, 512),
    ("128x4", 5, 128, 0, 1024),
    ("128x4", 5, 129, 4, 1552),
    ("8x4", 4, 0, 3, 3),
    ("8x4", 4, 1, 0, 4),
    ("8x4", 4, 7, 3, 31),
    ("8x4", 4, 8, 0, 32),
    ("8x4", 9, 0, 4, 32),
    ("8x4", 9, 0, 8, 64),
    ("8x4", 9, 8, 0, 96),
    ("8x4", 9, 9, 5, 133),
]


@pytest.mark.parametrize(("layout", "columns", "row", "column", "byte"), PLACES)
def test_literal_places(layout, columns, row, column, byte):
    assert places(130, columns, layout)[row, column] == byte


@pytest.mark.fault("ROCm/aiter#2900")
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_scale_lands_at_its_byte_and_all_others_are_zero(layout, rows, columns):
    scale = scales(rows, columns)
    wanted = tiled_by_loops(scale.tolist(), layout, padding=0)
    assert wanted.count(0) == len(wanted) - rows * columns
    assert to_tiled(scale, layout).tolist() == wanted


@pytest.mark.fault("ROCm/aiter#2900")
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_reading_finds_each_scale_and_no_padding(layout, rows, columns):
    scale = scales(rows, columns)
    tiled = torch.tensor(tiled_by_loops(scale.tolist(), layout, padding=POISON), dtype=torch.uint8)
    assert torch.equal(from_tiled(tiled, rows, columns, layout), scale)


@pytest.mark.parametrize(
    ("layout", "rows", "columns", "size"),
    [("128x4", 1, 1, 512), ("128x4", 129, 5, 2048), ("8x4", 1, 1, 32), ("8x4", 9, 5, 128), ("8x4", 0, 4, 0)],
)
def test_sizes_with_padding(layout, rows, columns, size):
    assert tiled_size(rows, columns, layout) == size
    assert to_tiled(scales(rows, columns), layout).shape == (size,)


@pytest.mark.fault("modular/modular#6600")
@pytest.mark.parametrize(("layout", "columns"), [("128x4", 4), ("128x4", 8), ("8x4", 8)])
def test_a_double_swizzle_is_visible(layout, columns):
    """Seen in modular/modular#6600: scales that were tiled already are tiled again. Sizes and values stay the same.

    In 8x4 it needs more than one tile across, as a tile lies there as in a linear layout.
    """
    scale = scales(128, columns)
    twice = to_tiled(to_tiled(scale, layout).reshape(128, columns), layout)
    wrong = from_tiled(twice, 128, columns, layout) != scale
    assert wrong.sum() > wrong.numel() / 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_leading_dimensions_are_tiled_each_for_itself(layout):
    scale = scales(2, 3, 9, 5)
    tiled = to_tiled(scale, layout)
    assert torch.equal(tiled[1, 2], to_tiled(scale[1, 2], layout))
    assert torch.equal(from_tiled(tiled, 9, 5, layout), scale)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_dtype_stays(layout):
    scale = scales(9, 5).view(torch.float8_e4m3fn)
    tiled = to_tiled(scale, layout)
    assert tiled.dtype == torch.float8_e4m3fn
    read = from_tiled(tiled, 9, 5, layout)
    assert read.dtype == torch.float8_e4m3fn
    assert torch.equal(read.view(torch.uint8), scale.view(torch.uint8))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: to_tiled(scales(2, 2), "4x4"), ValueError, "layout is '4x4', but should be one of 128x4, 8x4"),
        (lambda: to_tiled(scales(2), "8x4"), ValueError, r"scale has shape \[2\], .* rows and columns"),
        (lambda: to_tiled(torch.ones(2, 2), "8x4"), TypeError, "scale is torch.float32, .*float8_e4m3fn"),
        (lambda: from_tiled(scales(32), 9, 4, "8x4"), ValueError, r"tiled has shape \[32\], .* 9 x 4 .* 64 bytes"),
        (lambda: from_tiled(scales(32), 8, 4, "4x4"), ValueError, "layout is '4x4'"),
        (lambda: from_tiled(torch.ones(32), 8, 4, "8x4"), TypeError, "tiled is torch.float32"),
        (lambda: tiled_size(8, 4, "linear"), ValueError, "layout is 'linear'"),
        (lambda: places(8, 4, "linear"), ValueError, "layout is 'linear'"),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
