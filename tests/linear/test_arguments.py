"""What the linear layer refuses, and in which words; everything before a launch."""

from dataclasses import replace

import pytest
import torch

from nvfp4_suite.contract.gpus import CATALOG, PORTABLE
from nvfp4_suite.kernels import linear
from nvfp4_suite.kernels.linear_plan import plan_linear

from .layer import random

LAYER = random(3, 40, 48, "bf16")


def _misaligned(tensor: torch.Tensor) -> torch.Tensor:
    flat = torch.empty(tensor.numel() + 1, dtype=torch.uint8)
    return flat[1:].view(tensor.dtype).view(tensor.shape)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": LAYER.x.float()}, TypeError, "x is torch.float32, but should be torch.bfloat16 or torch.float16"),
        ({"x": None}, TypeError, "x is NoneType, but should be"),
        ({"x": LAYER.x[0]}, ValueError, r"x has shape \[48\], but should be \[M, 48\]"),
        ({"x": LAYER.x[:, :32]}, ValueError, r"x has shape \[3, 32\], but should be \[M, 48\]"),
        ({"x": LAYER.x.to("meta")}, ValueError, "x is on meta, but should be on cpu like packed"),
        ({"packed": None}, TypeError, "packed is NoneType, but should be torch.uint8"),
        ({"packed": LAYER.packed.int()}, TypeError, "packed is torch.int32, but should be torch.uint8"),
        ({"packed": LAYER.packed[None]}, ValueError, r"packed has shape \[1, 40, 24\], but should be \[N, K/2\]"),
        ({"packed": LAYER.packed[:, :20].clone()}, ValueError, r"packed has shape \[40, 20\].* multiple of 16"),
        ({"packed": LAYER.packed[:0]}, ValueError, r"packed has shape \[0, 24\].* N at least 1"),
        ({"packed": LAYER.packed.T.contiguous().T}, ValueError, r"packed has strides \[1, 40\]"),
        ({"packed": _misaligned(LAYER.packed)}, ValueError, "packed starts at .* but should be 16-byte aligned"),
        ({"scale": LAYER.scale.view(torch.uint8)}, TypeError, "scale is torch.uint8, but should be torch.float8"),
        ({"scale": LAYER.scale[:, :2]}, ValueError, r"scale has shape \[40, 2\], but should be \[40, 3\]"),
        ({"scale": LAYER.scale.T.contiguous().T}, ValueError, r"scale has strides \[1, 40\], but should be contig"),
        ({"scale": _misaligned(LAYER.scale)}, ValueError, "scale starts at .* but should be 16-byte aligned"),
        ({"global_scale": 0.5}, TypeError, "global_scale is float, but should be torch.float32"),
        ({"global_scale": LAYER.global_scale[:1]}, ValueError, r"global_scale has shape \[1\], .* \[40\] or \[\]"),
        ({"global_scale": LAYER.global_scale.half()}, TypeError, "global_scale is torch.float16"),
    ],
)
def test_a_wrong_tensor_is_named(change, error, message):
    with pytest.raises(error, match=message):
        linear.nvfp4_linear(*vars(replace(LAYER, **change)).values())


@pytest.mark.parametrize("split_k", [0, 3, "2", True, None])
def test_an_unknown_split_is_refused(split_k):
    plan_linear(PORTABLE, 3, 40, 48, dtype="bf16", split_k=1)  # is remembered, and 1 == True
    with pytest.raises(ValueError, match=f"split_k is {split_k!r}, but should be one of auto, 1, 2"):
        linear.nvfp4_linear(*vars(LAYER).values(), split_k=split_k)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (plan_linear(PORTABLE, 3, 41, 48), "plan is for n 41 and k 48, but the tensors have n 40 and k 48"),
        (plan_linear(PORTABLE, 3, 40, 48, dtype="fp16"), "plan is for fp16, but x is torch.bfloat16"),
        (plan_linear(PORTABLE, 0, 40, 48), "plan is for zero rows, but x has 3"),
    ],
)
def test_a_plan_for_another_layer_is_refused(plan, message):
    with pytest.raises(ValueError, match=message):
        linear.run(plan, *vars(LAYER).values())


def test_the_cpu_needs_the_repaired_interpreter(monkeypatch):
    monkeypatch.delattr("triton.runtime.interpreter.repaired_by_nvfp4_suite", raising=False)
    with pytest.raises(ValueError, match=r"x is on cpu, but .* import nvfp4_suite\.ci\.interpreter first"):
        linear.nvfp4_linear(*vars(LAYER).values())


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ((-1, 40, 48), {}, "m is -1, but should be at least 0"),
        ((3, 0, 48), {}, "n is 0, but should be at least 1"),
        ((3, 40, 40), {}, "k is 40, but should be a positive multiple of 16"),
        ((3, 40, 0), {}, "k is 0, but should be a positive multiple of 16"),
        ((3, 40, 48), {"dtype": "fp32"}, "dtype is 'fp32', but should be one of bf16, fp16"),
    ],
)
def test_impossible_sizes_are_named(sizes, options, message):
    with pytest.raises(ValueError, match=message):
        plan_linear(CATALOG[0], *sizes, **options)
