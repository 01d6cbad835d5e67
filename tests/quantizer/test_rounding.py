"""fp32 to e4m3 and to e2m1 by integers: every value, every midpoint and its neighbours, and what has no neighbour."""

import pytest
import torch
import triton
import triton.language as tl

from nvfp4_suite.kernels.device.quantize import e2m1_code, e4m3_byte
from nvfp4_suite.reference import formats

INF, NAN = torch.inf, torch.nan


@triton.jit
def _bytes(x, out, STEP: tl.constexpr):
    place = tl.program_id(0) * STEP + tl.arange(0, STEP)
    tl.store(out + place, e4m3_byte(tl.load(x + place)))


@triton.jit
def _codes(x, out, STEP: tl.constexpr):
    place = tl.program_id(0) * STEP + tl.arange(0, STEP)
    tl.store(out + place, e2m1_code(tl.load(x + place)).to(tl.uint8))


def rounded(kernel, x: torch.Tensor, device: str) -> torch.Tensor:
    """uint8 of fp32 `x` [n], in steps of 1024."""
    padded = torch.nn.functional.pad(x, (0, -len(x) % 1024)).to(device)
    out = torch.empty(len(padded), dtype=torch.uint8, device=device)
    kernel[(len(padded) // 1024,)](padded, out, STEP=1024)
    return out[: len(x)].cpu()


def neighbours(x: torch.Tensor) -> torch.Tensor:
    """fp32 `x`, and the fp32 on either side."""
    return torch.cat([x, torch.nextafter(x, torch.tensor(INF)), torch.nextafter(x, torch.tensor(-INF))])


def targets(values: torch.Tensor) -> torch.Tensor:
    """Every value of a format, every midpoint, their neighbours; four numbers of every binade of fp32; and its ends."""
    critical = neighbours(torch.cat([values, (values[1:] + values[:-1]) / 2]))
    powers = 2.0 ** torch.arange(-149, 128, dtype=torch.float64)
    binades = torch.outer(powers, torch.tensor([1, 1 + 2**-23, 1.5, 2 - 2**-23], dtype=torch.float64))
    return torch.cat(
        [critical.clamp(min=0), binades.flatten().float(), torch.tensor([0.0, INF, NAN, 464.0, 480.0, 500.0])]
    )


@pytest.mark.fault("triton-lang/triton#11753")
def test_every_e4m3_midpoint_and_its_neighbours(device):
    x = targets(formats.decode_e4m3(torch.arange(0x7F, dtype=torch.uint8)))
    assert torch.equal(rounded(_bytes, x, device), formats.encode_e4m3(x))


def test_every_e2m1_midpoint_and_its_neighbours(device):
    x = targets(formats.E2M1_VALUES[:8])
    x = torch.cat([x, -x])  # also -0.0, and -NaN
    assert torch.equal(rounded(_codes, x, device), formats.encode_e2m1(x))


@pytest.mark.fault("triton-lang/triton#11753")
@pytest.mark.parametrize(
    ("bits", "byte"),
    [
        (0x3F880001, 0x39),  # just above 1.0625: 1.125, and 1 if it passes through fp16 first
        (0x3F880000, 0x38),  # 1.0625: a tie
        (0x43C80CCD, 0x7D),  # 400.1: 416
        (0x43C80000, 0x7C),  # 400: a tie
        (0x3A800346, 0x01),  # 2^-10 * 1.0001: 2^-9
        (0x3A800000, 0x00),  # 2^-10: a tie
    ],
)
def test_a_scale_is_rounded_once(bits, byte, device):
    """triton-lang/triton#11753: on sm_89 the value above a midpoint became a tie, and went down."""
    x = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
    assert rounded(_bytes, x, device).tolist() == [byte]
