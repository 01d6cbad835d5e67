"""The NVFP4 quantizer of activations on tensors."""

import contextlib

import torch
import triton
from torch import Tensor

from . import pointwise
from .arguments import check_kinds, check_runs_here, dtype_name, plain
from .launch import Launch, start

LAYOUTS = ("linear", "128x4")
TILE_ROWS, TILE_COLUMNS = 128, 4


def quantize(x: Tensor, stored: Tensor, *, layout: str = "linear") -> tuple[Tensor, Tensor]:
    """`x` [M, K] as packed e2m1 u8 [M, K/2] and e4m3 block scales: the bytes of reference.quantize's recipe "vllm".

    `x` is bf16 or fp16, K a multiple of 16. `stored` f32 [1] is vLLM's global scale S, 2688 / amax, on the device of
    `x`. Scales are u8 [M, K/16], or in `layout` "128x4" the bytes of cuBLAS's tiles of 1D block scales, flat, padding
    0x00. A strided or misaligned `x` is copied first. CPU tensors run in Triton's interpreter, once ci/interpreter.py
    has repaired it. Raises TypeError or ValueError, naming the argument, before anything is launched.
    """
    _check(x, stored, layout)
    with torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext():
        return start_quantize(pointwise.quantize(dtype_name(x), layout), plain(x), plain(stored))


def start_quantize(launch: Launch, x: Tensor, stored: Tensor) -> tuple[Tensor, Tensor]:
    """`quantize` of a contiguous and aligned `x`, unchecked, by `launch`."""
    rows, columns = x.shape
    packed = torch.empty(rows, columns // 2, dtype=torch.uint8, device=x.device)
    shape = (rows, columns // 16)
    padded = shape
    if launch.constexpr("SWIZZLED"):
        padded = tuple(triton.cdiv(size, to) * to for size, to in zip(shape, (TILE_ROWS, TILE_COLUMNS), strict=True))
        shape = (padded[0] * padded[1],)
    scale = torch.empty(*shape, dtype=torch.uint8, device=x.device)
    block_m, block_k = launch.constexpr("BLOCK_M"), launch.constexpr("BLOCK_K")
    grid = (triton.cdiv(padded[0], block_m), triton.cdiv(padded[1], block_k // 16))
    if rows:
        start(launch, grid, x=x, stored=stored, packed=packed, scale=scale, rows=rows, columns=columns)
    return packed, scale


def _check(x: Tensor, stored: Tensor, layout: str) -> None:
    check_kinds({"x": (x, (torch.bfloat16, torch.float16))}, getattr(x, "device", None), "x")
    check_kinds({"stored": (stored, (torch.float32,))}, x.device, "x")
    if x.dim() != 2 or not x.shape[1] or x.shape[1] % 16:
        raise ValueError(f"x has shape {list(x.shape)}, but should be [M, K], K a positive multiple of 16")
    if list(stored.shape) != [1]:
        raise ValueError(f"stored has shape {list(stored.shape)}, but should be [1]")
    if layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}, but should be one of {', '.join(LAYOUTS)}")
    check_runs_here("x", x)
