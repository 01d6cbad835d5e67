"""Scales just above a midpoint of e4m3, by every recipe, from the amax of a block to the byte that is stored.

Seen in triton-lang/triton#11753 and FlashML-org/FreeToken#85: fp32 went through a truncated fp16, where a value just
above a midpoint is a tie, and ties go down as often as up.
"""

import struct

import pytest
import torch

from nvfp4_suite.reference import formats
from nvfp4_suite.reference.quantize import RECIPES, SIXTH, quantize

from .blocks import neutral

ABOVE = struct.unpack(">f", bytes.fromhex("3f880001"))[0]  # the fp32 next to 1.0625, which is between 1 and 1.125

# The amax of a block, a sixth of it, and the scale. Both fp32 forms of a sixth, the division and the multiplication by
# the reciprocal, give the first two exactly.
SCALES = [
    (6.375 + 2.0**-21, ABOVE, 1.125),  # 1.0 where fp16 came between
    (6.375, 1.0625, 1.0),  # ties to even
    (2400.6, 400.1, 416.0),
    (2400.0, 400.0, 384.0),
    (6 * 2.0**-10 * 1.0001, 2.0**-10 * 1.0001, 2.0**-9),
    (6 * 2.0**-10, 2.0**-10, 0.0),
]
REPLACED = {  # what recipes make of a scale that is too small, see reference/quantize.py
    "modelopt": lambda scale: max(scale, 2.0**-9),
    "compressed_tensors": lambda scale: scale or 0.125,
    "torchao": lambda scale: max(scale, 2.0**-6),
}


@pytest.mark.fault("triton-lang/triton#11753")
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(("amax", "sixth", "scale"), SCALES)
def test_a_block_scale_is_rounded_once(amax, sixth, scale, recipe):
    amax = torch.tensor(amax)
    assert [(amax / 6).item(), (amax * SIXTH).item()] == pytest.approx([sixth] * 2, rel=0 if 1 < sixth < 2 else 2**-22)
    x = torch.zeros(2, 16)
    x[0, 3], x[1, 12] = amax, -amax
    _, stored = quantize(x, neutral(recipe), recipe)
    wanted = REPLACED.get(recipe, float)(scale)
    assert formats.decode_e4m3(stored).tolist() == [[wanted]] * 2
