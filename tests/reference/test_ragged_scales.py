"""Scales of a ragged K, from the quantizer through the tiles that GEMMs read, and back: both ends count a row alike.

Seen in ROCm/aiter#2900: the quantizer stepped rows by their valid scales, the GEMM by the padded ones, which is right
for the first 32 rows alone; and padding of 1 let what lies behind a row add to the sums.
"""

import pytest
import torch

from nvfp4_suite.reference import formats
from nvfp4_suite.reference.layout import TILE_ROWS, from_tiled, places, tiled_size, to_tiled
from nvfp4_suite.reference.quantize import RECIPES, global_scale_of, quantize

from .blocks import ordinary

M, N = 33, 8  # rows of x: one more than the group of 32 that a tile interleaves; weight rows
E4M3_NAN = 0x7F
every_k = pytest.mark.parametrize("k", [16, 48, 80, 144, 2064])


@pytest.mark.fault("ROCm/aiter#2900")
@every_k
@pytest.mark.parametrize("recipe", RECIPES)
def test_nothing_behind_a_row_is_quantized(k: int, recipe: str):
    """Rows of x that are the first k of longer ones, with NaN behind them."""
    x = ordinary(M, k)
    wide = torch.full((M, k + 48), torch.nan)
    wide[:, :k] = x
    global_scale = global_scale_of(x.abs().max(), recipe)
    assert all(map(torch.equal, quantize(wide[:, :k], global_scale, recipe), quantize(x, global_scale, recipe)))


@pytest.mark.fault("ROCm/aiter#2900")
@every_k
@pytest.mark.parametrize("layout", TILE_ROWS)
def test_a_gemm_on_tiled_scales_is_that_on_linear_ones(k: int, layout: str):
    """Its reader finds NaN in the padding, and a row of scales that are another row's would change that row's sums."""
    x, weight, one = ordinary(M, k) * (1 + torch.arange(M)[:, None]), ordinary(N, k).double(), torch.ones(())
    packed, scale = quantize(x, global_scale_of(x.abs().max(), "vllm"), "vllm")
    assert len(set(scale[:, 0].tolist())) > M // 2
    tiled = to_tiled(scale, layout)
    padding = torch.ones(len(tiled), dtype=torch.bool)
    padding[places(M, k // 16, layout).flatten()] = False
    assert (tiled[padding] == 0).all()
    read = from_tiled(torch.where(padding, E4M3_NAN, tiled), M, k // 16, layout)
    sums, wanted = (formats.dequantize(packed, each, one) @ weight.T for each in (read, scale))
    assert torch.equal(sums, wanted)


@pytest.mark.fault("ROCm/aiter#2900")
def test_the_first_row_of_the_second_group():
    """K 144: 9 scales a row, padded to 12. Row 32 begins at byte 4 of each tile of 512."""
    assert tiled_size(M, 9, "128x4") == 3 * 512
    assert places(M, 9, "128x4")[32].tolist() == [4, 5, 6, 7, 516, 517, 518, 519, 1028]
    assert places(M, 9, "128x4")[31].tolist() == [496, 497, 498, 499, 1008, 1009, 1010, 1011, 1520]
