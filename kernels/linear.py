"""The NVFP4 linear layer: x times the transpose of one packed weight matrix, by GEMV or GEMM."""

import contextlib

import torch
import triton
from torch import Tensor

from .arguments import as_declared, check_kinds, check_runs_here, dtype_name, plain
from .experts import gpu_of, release
from .launch import Launch, start
from .linear_plan import LinearPlan, plan_linear


def nvfp4_linear(
    x: Tensor, packed: Tensor, scale: Tensor, global_scale: Tensor, *, split_k: int | str = "auto"
) -> Tensor:
    """x times W transposed, [M, N] in the dtype of `x`: an fp32 sum, times the global scale in fp32, rounded once.

    `x` [M, K] bf16 or fp16. W[n, k] = e2m1 * scale[n, k // 16] * global_scale[n], from `packed` u8 [N, K/2], low nibble
    = even k, and `scale` e4m3 [N, K/16], both contiguous and 16-byte aligned, and from `global_scale` f32 [N], or []
    for all rows. K is a multiple of 16, N any number. `split_k`: see plan_linear; parts of K are added in
    fp32, in their order. CPU tensors run in Triton's interpreter under the portable plan, once ci/interpreter.py has
    repaired it. Raises TypeError or ValueError, naming the argument, before anything is launched.
    """
    _check_tensors(x, packed, scale, global_scale)
    n, k = packed.shape[0], 2 * packed.shape[1]
    options = {"triton": release(), "dtype": dtype_name(x), "split_k": split_k}
    plan = plan_linear(gpu_of(x.device), x.shape[0], n, k, **options)
    return run(plan, x, packed, scale, global_scale)


def run(plan: LinearPlan, x: Tensor, packed: Tensor, scale: Tensor, global_scale: Tensor) -> Tensor:
    """Runs `plan`, also one made for another GPU, on the tensors that `nvfp4_linear` describes.

    A strided or misaligned `x` is copied first. Raises ValueError where the tensors are not those planned for, and on
    the CPU without the repaired interpreter.
    """
    _check_tensors(x, packed, scale, global_scale)
    _check_plan(plan, x, packed)
    out = x.new_empty(x.shape[0], plan.n)
    if not x.shape[0]:
        return out
    x, global_scale = plain(x), plain(global_scale.expand(plan.n))
    with torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext():
        if plan.launch("gemv"):
            _gemv(plan, x, packed, scale, global_scale, out)
        else:
            _gemm(plan, x, packed, scale, global_scale, out)
    return out


def _gemv(plan: LinearPlan, x: Tensor, packed: Tensor, scale: Tensor, global_scale: Tensor, out: Tensor) -> None:
    launch = plan.launch("gemv")
    tensors = _operands(launch, x, packed, scale, global_scale)
    sizes = {"N": plan.n, "k_units": plan.k // launch.constexpr("K_UNIT")}
    start(launch, (len(x) * triton.cdiv(plan.n, launch.constexpr("BLOCK_N")),), **tensors, out=out, **sizes)


def _gemm(plan: LinearPlan, x: Tensor, packed: Tensor, scale: Tensor, global_scale: Tensor, out: Tensor) -> None:
    launch, add = plan.launch("gemm"), plan.launch("sum_splits")
    sums = torch.empty(plan.split_k, *out.shape, dtype=torch.float32, device=x.device) if add else out
    tiles = triton.cdiv(len(x), launch.constexpr("BLOCK_M")) * triton.cdiv(plan.n, launch.constexpr("BLOCK_N"))
    sizes = {"M": len(x), "N": plan.n, "k_units": plan.k // launch.constexpr("K_UNIT")}
    tensors = _operands(launch, x, packed, scale, global_scale)
    start(launch, (tiles, plan.split_k), **tensors, out=sums, **sizes)
    if add:
        grid = (len(x), triton.cdiv(plan.n, add.constexpr("BLOCK")))
        sizes = {"M": len(x), "N": plan.n, "splits": plan.split_k}
        start(add, grid, partial=sums, global_scale=global_scale, out=out, **sizes)


def _operands(launch: Launch, x: Tensor, packed: Tensor, scale: Tensor, global_scale: Tensor) -> dict[str, Tensor]:
    weights = {name: as_declared(launch, name, tensor) for name, tensor in (("packed", packed), ("scale", scale))}
    return {"x": x, **weights, "global_scale": global_scale}


def _check_tensors(x: Tensor, packed: Tensor, scale: Tensor, global_scale: Tensor) -> None:
    expected = {
        "packed": (packed, (torch.uint8,)),
        "x": (x, (torch.bfloat16, torch.float16)),
        "scale": (scale, (torch.float8_e4m3fn,)),
        "global_scale": (global_scale, (torch.float32,)),
    }
    check_kinds(expected, getattr(packed, "device", None), "packed")
    if packed.dim() != 2 or not packed.numel() or packed.shape[1] % 8:
        should = "[N, K/2], with N at least 1 and K a positive multiple of 16"
        raise ValueError(f"packed has shape {list(packed.shape)}, but should be {should}")
    n, k = packed.shape[0], 2 * packed.shape[1]
    if x.dim() != 2 or x.shape[1] != k:
        raise ValueError(f"x has shape {list(x.shape)}, but should be [M, {k}]")
    for name, tensor, shapes in (("scale", scale, [[n, k // 16]]), ("global_scale", global_scale, [[n], []])):
        if list(tensor.shape) not in shapes:
            should = " or ".join(map(str, shapes))
            raise ValueError(f"{name} has shape {list(tensor.shape)}, but should be {should}")
    for name, tensor in (("packed", packed), ("scale", scale)):
        if not tensor.is_contiguous():
            raise ValueError(f"{name} has strides {list(tensor.stride())}, but should be contiguous")
        if tensor.data_ptr() % 16:
            past = tensor.data_ptr() % 16
            raise ValueError(f"{name} starts at {past} bytes past a multiple of 16, but should be 16-byte aligned")


def _check_plan(plan: LinearPlan, x: Tensor, packed: Tensor) -> None:
    if not isinstance(plan, LinearPlan):
        raise TypeError(f"plan is {plan!r}, but should be a LinearPlan")
    if (plan.n, plan.k) != (packed.shape[0], x.shape[1]):
        found = f"n {packed.shape[0]} and k {x.shape[1]}"
        raise ValueError(f"plan is for n {plan.n} and k {plan.k}, but the tensors have {found}")
    if plan.dtype != dtype_name(x):
        raise ValueError(f"plan is for {plan.dtype}, but x is {x.dtype}")
    if x.shape[0] and not plan.launches:
        raise ValueError(f"plan is for zero rows, but x has {x.shape[0]}")
    check_runs_here("x", x)
