"""Tensors that lie where quantizers part: one table of generators, each for a tensor of a given largest magnitude."""

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from nvfp4_suite.contract.case import hashed

# The neutral one, powers of two away from it, and such as round in every operation.
AMAXES = (2688.0, 6.0, 5.0, 7.0, 3.0, 0.011, 31000.0)

SCALES = torch.from_numpy(np.arange(0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32))
MIDPOINTS = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


def even(key: str, *shape: int) -> Tensor:
    """fp32 in [-1, 1), spread evenly."""
    return (hashed(f"{key} {shape}", *shape) >> 8).float() / 2**23 - 1


def moved(x: Tensor, steps: Tensor) -> Tensor:
    """Positive x moved by that many fp32 steps."""
    return (x.view(torch.int32) + steps).to(torch.int32).view(torch.float32)


def ordinary(amax: float) -> Tensor:
    return even("ordinary", 64, 64) * amax


def element_ties(amax: float) -> Tensor:
    """Under each scale, every midpoint of e2m1 and its neighbours, with both signs: [126 * 5, 16]."""
    step = (SCALES[1:] * (amax / 2688))[:, None, None]
    ties = moved(step * MIDPOINTS, torch.arange(-2, 3)[:, None])
    largest, zero = (step * 6).expand(126, 5, 1), torch.zeros(126, 5, 1)
    return torch.cat([largest, ties, -ties, zero], dim=-1).flatten(0, 1)


def scale_ties(amax: float) -> Tensor:
    """The largest of each block within three fp32 steps of where its scale is a tie of e4m3: [126 * 7, 16]."""
    largest = moved(((SCALES[:-1] + SCALES[1:]) / 2 * 6 * (amax / 2688))[:, None], torch.arange(-3, 4)).flatten()
    x = even("scale ties", len(largest), 16) * largest[:, None]
    x[:, 5] = -largest
    return x


def subnormal(amax: float) -> Tensor:
    """Blocks whose scales are subnormal or underflow: the least normal one is 2^-6."""
    return even("subnormal", 128, 16) * (amax / 448) * 2.0 ** -(4 + torch.arange(128) % 10)[:, None]


def saturation(amax: float) -> Tensor:
    """Blocks up to 2^20 times larger than the tensor is said to be."""
    return even("saturation", 64, 32) * amax * 2.0 ** (torch.arange(64) % 21)[:, None]


def binades(amax: float) -> Tensor:
    """Blocks down to 2^-60 of the largest."""
    return even("binades", 122, 16) * amax * 2.0 ** -(torch.arange(122) % 61)[:, None]


def zeros(amax: float) -> Tensor:
    """Blocks of zeros of either sign, alone, beside a normal number, and beside the smallest one."""
    x = torch.tensor([0.0, -0.0]).repeat(6, 8)
    x[1, 3], x[2, 3], x[3, 3], x[4, 3], x[5, 3] = amax, -amax, 2.0**-149, -(2.0**-149), -(2.0**-130)
    return x


def non_finite(amax: float) -> Tensor:
    """NaN and infinities, each in the second of four blocks."""
    x = even("non-finite", 4, 64) * amax
    x[0, 20], x[1, 21], x[2, 22] = torch.nan, torch.inf, -torch.inf
    x[3, 20:22] = torch.tensor([torch.inf, torch.nan])
    return x


DATA = {
    data.__name__: data
    for data in (ordinary, element_ties, scale_ties, subnormal, saturation, binades, zeros, non_finite)
}
