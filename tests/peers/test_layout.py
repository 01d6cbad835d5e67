"""The 128x4 layout against torchao's."""

import pytest
import torch

from nvfp4_suite.contract.case import hashed
from nvfp4_suite.reference.layout import from_tiled, to_tiled

from .producers import from_blocked, to_blocked


@pytest.mark.parametrize("columns", [1, 4, 5, 9])
@pytest.mark.parametrize("rows", [1, 127, 128, 129])
def test_128x4(rows, columns):
    scale = (hashed("scales", rows, columns) & 0xFF).to(torch.uint8)
    theirs = to_blocked(scale)
    assert torch.equal(to_tiled(scale, "128x4"), theirs)
    assert torch.equal(from_tiled(theirs, rows, columns, "128x4"), from_blocked(theirs, rows, columns))
