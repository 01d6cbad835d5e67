"""Where the recipes part: literal bytes for each kind of block that tells producers apart, worked out by hand.

Unless it says otherwise, a case has the global scale that changes nothing, so that the block scale is amax / 6.
"""

import pytest
import torch

from nvfp4_suite.reference import formats
from nvfp4_suite.reference.quantize import RECIPES, global_scale_of, quantize

from .blocks import neutral
from .tables import E2M1_MIDPOINTS

NAMES = ("modelopt", "compressed_tensors", "torchao", "vllm", "transformer_engine")
INF, NAN = torch.inf, torch.nan
UNDERFLOW = 6 * 2.0**-10  # its scale is the tie between 0 and the least e4m3
ONE_ULP = 2.0**-31  # of UNDERFLOW


def ulps_above(count: int) -> list[float]:
    """The midpoints of e2m1, each moved by that many fp32 steps."""
    x = torch.tensor(E2M1_MIDPOINTS)
    return (x.view(torch.int32) + count).view(torch.float32).tolist()


# name: (the first elements; the last one fills the block), then scale and codes of each recipe in the order of NAMES.
# fmt: off
CASES = {
    "zeros": (
        [-0.0, 0.0],
        (0x38, [0, 0]), (0x20, [0, 0]), (0x08, [8, 0]), (0x00, [8, 0]), (0x00, [0, 0]),
    ),
    "scale underflows": (  # 3 in units of 2^-9; 0.05 of 0.125; 0.375 of 2^-6
        [UNDERFLOW, -UNDERFLOW, 0.0],
        (0x01, [5, 13, 0]), (0x20, [0, 8, 0]), (0x08, [1, 9, 0]), (0x00, [0, 8, 0]), (0x00, [7, 15, 0]),
    ),
    "everything underflows": (  # not even the largest fp32 as factor brings it back
        [2.0**-149, -(2.0**-149), 0.0],
        (0x38, [0, 8, 0]), (0x20, [0, 8, 0]), (0x08, [0, 8, 0]), (0x00, [0, 8, 0]), (0x00, [0, 8, 0]),
    ),
    "least scale": (
        [UNDERFLOW + ONE_ULP, -UNDERFLOW, 0.0],
        (0x01, [5, 13, 0]), (0x01, [5, 13, 0]), (0x08, [1, 9, 0]), (0x01, [5, 13, 0]), (0x01, [5, 13, 0]),
    ),
    "largest subnormal scale": (  # elements 6, -3 and 0.75 in units of 7 * 2^-9; 5.25, -2.6 and 0.66 in units of 2^-6
        [42 / 512, -21 / 512, 5.25 / 512, 0.0],
        *[(0x07, [7, 13, 2, 0])] * 2, (0x08, [7, 13, 1, 0]), *[(0x07, [7, 13, 2, 0])] * 2,
    ),
    "scale saturates": ([3600.0, 1120.0, -2240.0, 0.0], *[(0x7E, [7, 4, 14, 0])] * 5),  # 8.04, 2.5 and -5 of 448
    "infinity": ([INF, -INF, 448.0, 0.0], *[(0x7E, [7, 15, 2, 0])] * 5),
    "ties": ([6.0, *E2M1_MIDPOINTS, -0.25, -5.0, 0.0], *[(0x38, [7, 0, 2, 2, 4, 4, 6, 6, 8, 14, 0])] * 5),
    "above ties": ([6.0, *ulps_above(1), 0.0], *[(0x38, [7, 1, 2, 3, 4, 5, 6, 7, 0])] * 5),
    "below ties": ([6.0, *ulps_above(-1), 0.0], *[(0x38, [7, 0, 1, 2, 3, 4, 5, 6, 0])] * 5),
    "signs": (
        [6.0, -0.0, -0.1, 0.0],
        (0x38, [7, 0, 8, 0]), (0x38, [7, 0, 8, 0]), (0x38, [7, 8, 8, 0]), (0x38, [7, 8, 8, 0]), (0x38, [7, 0, 8, 0]),
    ),
    "an element underflows to -0": (
        [2688.0, -(2.0**-149), 0.0],
        (0x7E, [7, 0, 0]), (0x7E, [7, 0, 0]), (0x7E, [7, 8, 0]), (0x7E, [7, 8, 0]), (0x7E, [7, 0, 0]),
    ),
    "NaN": (
        [NAN, 6.0, -1.0, 0.0],
        (0x7F, [7, 7, 7, 7]), (0x7F, [0, 0, 0, 0]), (0x7F, [4, 4, 4, 4]), (0x7F, [7, 7, 7, 7]), (0x7F, [0, 0, 0, 0]),
    ),
}
# fmt: on


@pytest.mark.fault("NVIDIA/Model-Optimizer#1397")
@pytest.mark.parametrize("recipe", NAMES)
@pytest.mark.parametrize("case", CASES)
def test_block(case, recipe):
    """Zeros and NaN as in NVIDIA/Model-Optimizer#1397, ties and their neighbours as in ROCm/aiter#3992."""
    elements, *wanted = CASES[case]
    scale, codes = wanted[NAMES.index(recipe)]
    x = torch.tensor(elements + elements[-1:] * (16 - len(elements)))
    packed, scales = quantize(x, neutral(recipe), recipe)
    assert [f"{byte:#04x}" for byte in scales.tolist()] == [f"{scale:#04x}"]
    assert formats.unpack(packed).tolist() == codes + codes[-1:] * (16 - len(codes))


ZERO_TENSORS = {
    "modelopt": (0x7F, 7, 7),  # 0 / 0
    "compressed_tensors": (0x20, 0, 0),
    "torchao": (0x7F, 4, 4),  # 0 / 0
    "vllm": (0x00, 0, 8),
    "transformer_engine": (0x00, 0, 0),
}


@pytest.mark.fault("NVIDIA/Model-Optimizer#1397")
@pytest.mark.parametrize("recipe", NAMES)
def test_a_tensor_of_zeros(recipe):
    """Seen in NVIDIA/Model-Optimizer#1397: the amax of experts that calibration never woke."""
    scale, plus, minus = ZERO_TENSORS[recipe]
    packed, scales = quantize(
        torch.tensor([0.0, -0.0]).repeat(2, 8), global_scale_of(torch.tensor(0.0), recipe), recipe
    )
    assert scales.tolist() == [[scale]] * 2
    assert formats.unpack(packed).tolist() == [[plus, minus] * 8] * 2


@pytest.mark.parametrize(
    ("amax", "element", "scale", "code"),
    [
        (0.0, 6.0, 0x38, 7),  # S = 1
        (INF, 6.0, 0x38, 7),  # S = 1, where 2688 / amax is 0
        (2.0**-127, 2.0**-127, 0x2B, 4),  # S is the largest fp32, not infinity: a third, and almost 2
    ],
)
def test_transformer_engine_at_the_ends_of_fp32(amax, element, scale, code):
    packed, scales = quantize(torch.full((16,), element), torch.tensor(amax), "transformer_engine")
    assert scales.tolist() == [scale]
    assert formats.unpack(packed).tolist() == [code] * 16


# The order of operations, with globals that round. Each line is a block amax near the midpoint of two e4m3 values, and
# the byte of each recipe in the order of NAMES, from rational arithmetic in which every operation was rounded to fp32.

# fmt: off
BLOCK_SCALES = [  # (amax of the tensor, amax of the block, bytes)
    (5.0, "0x1.84924ap-13", (8, 9, 9, 8, 8)),
    (5.0, "0x1.b24924p-13", (10, 10, 10, 9, 10)),
    (5.0, "0x1.ep-13", (10, 11, 10, 10, 10)),
    (5.0, "0x1.4b6db8p-12", (14, 15, 15, 14, 15)),
    (7.0, "0x1.2ffffep-12", (9, 10, 9, 10, 9)),
    (7.0, "0x1.500002p-12", (11, 11, 10, 11, 11)),
    (3.0, "0x1.049248p-13", (9, 10, 9, 9, 10)),
    (3.0, "0x1.2p-13", (10, 10, 10, 10, 11)),
    (3.0, "0x1.56db7p-13", (12, 13, 13, 13, 13)),
    (3.0, "0x1.a92492p-13", (15, 15, 15, 16, 16)),
]
CODES = [  # (amax of the tensor, scale byte, element, codes)
    (5.0, 8, "0x1.e79e7ap-18", (0, 1, 0, 0, 0)),
    (5.0, 8, "0x1.30c30ep-15", (3, 3, 2, 2, 2)),
    (5.0, 10, "0x1.7cf3d2p-15", (3, 3, 3, 3, 2)),
    (7.0, 8, "0x1.2aaaaap-14", (3, 4, 4, 4, 4)),
    (7.0, 10, "0x1.4p-15", (1, 2, 2, 2, 1)),
    (3.0, 10, "0x1.6db6dep-18", (1, 1, 0, 0, 1)),
    (3.0, 11, "0x1.6p-15", (3, 4, 3, 3, 4)),
]
# fmt: on


@pytest.mark.parametrize("recipe", NAMES)
@pytest.mark.parametrize(("amax", "block_amax", "wanted"), BLOCK_SCALES, ids=[line[1] for line in BLOCK_SCALES])
def test_block_scales_round_after_each_operation(amax, block_amax, wanted, recipe):
    global_scale = global_scale_of(torch.tensor(amax), recipe)
    scale = RECIPES[recipe].block_scale(torch.tensor(float.fromhex(block_amax)), global_scale)
    assert scale.item() == wanted[NAMES.index(recipe)]


@pytest.mark.parametrize("recipe", NAMES)
@pytest.mark.parametrize(("amax", "scale", "element", "wanted"), CODES, ids=[line[2] for line in CODES])
def test_codes_round_after_each_operation(amax, scale, element, wanted, recipe):
    global_scale = global_scale_of(torch.tensor(amax), recipe)
    x = torch.tensor([float.fromhex(element)] * 8 + [-float.fromhex(element)] * 8)
    codes = RECIPES[recipe].codes(x, torch.tensor(scale, dtype=torch.uint8), global_scale)
    code = wanted[NAMES.index(recipe)]
    assert codes.tolist() == [code] * 8 + [code + 8] * 8
