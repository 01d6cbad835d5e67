"""Values that are hard to quantize, and what the recipes make of them."""

import pytest
import torch

from nvfp4_suite.contract.case import hashed
from nvfp4_suite.reference import quantize

every_recipe = pytest.mark.parametrize("recipe", quantize.RECIPES)


def values(rows=8, k=64, key="boundary") -> torch.Tensor:
    """About normal, fp32, with a block of zeros, one of -0.0 and tiny ones, and one of values that underflow."""
    x = ((hashed(key, rows, k, 4) >> 16).sum(-1) - 2 * 0xFFFF).float() / 37_837
    x[1, :16] = 0
    x[2, 16:32] *= 2.0**-60
    x[2, 16:24] = -0.0
    x[3, 32:48] *= 2.0**-20
    return x


def global_scale(x: torch.Tensor, recipe: str) -> torch.Tensor:
    return quantize.global_scale_of(x.abs().max(), recipe)


def quantized(x: torch.Tensor, recipe: str = "vllm") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = global_scale(x, recipe)
    return *quantize.quantize(x, g, recipe), g


def around(x: torch.Tensor, relative: float) -> tuple[torch.Tensor, torch.Tensor]:
    d = relative * x.double().abs()
    return x.double() - d, x.double() + d
