"""Runs a LayerPlan on tensors. What runs is what the plan says, launch by launch."""

import contextlib
import os

import torch
import triton
from torch import Tensor

from ..contract import gpus
from ..contract.banks import ExpertBanks
from ..contract.case import torch_dtype
from . import prefill
from .launch import Launch, device_function
from .plan import LayerPlan, plan_layer


def fused_experts(
    hidden_states: Tensor,
    banks: ExpertBanks,
    topk_weights: Tensor,
    topk_ids: Tensor,
    *,
    activation: str = "silu",
    activation_alpha: float = 1.702,
    activation_limit: float = 7.0,
    weight_on_input: bool = False,
    kernel: str = "auto",
) -> Tensor:
    """The expert layer on the tensors' own GPU: [T, H] in the dtype of `hidden_states`.

    `hidden_states` [T, H] bf16 or fp16; `topk_weights` f32 and `topk_ids` i32 [T, top_k]; an id outside [0, E) adds
    nothing. `activation_alpha` and `activation_limit` are swigluoai's. CPU tensors run in Triton's interpreter under
    the portable plan. Raises TypeError or ValueError, naming the argument, before anything is launched.
    """
    _check_tensors(hidden_states, banks, topk_weights, topk_ids)
    device = hidden_states.device
    plan = plan_layer(
        gpus.current(device.index) if device.type == "cuda" else gpus.PORTABLE,
        banks.layer_shape(topk_ids.shape[1]),
        hidden_states.shape[0],
        triton=triton.__version__.split("+")[0],
        dtype=_dtype_name(hidden_states),
        activation=activation,
        weight_on_input=weight_on_input,
        input_scales=banks.gate_up_input_scale is not None,
        kernel=kernel,
    )
    options = {"activation_alpha": activation_alpha, "activation_limit": activation_limit}
    return run(plan, hidden_states, banks, topk_weights, topk_ids, **options)


def run(
    plan: LayerPlan,
    hidden_states: Tensor,
    banks: ExpertBanks,
    topk_weights: Tensor,
    topk_ids: Tensor,
    *,
    activation_alpha: float = 1.702,
    activation_limit: float = 7.0,
) -> Tensor:
    """Runs `plan`, also one made for another GPU, on the tensors that `fused_experts` describes.

    Strided and misaligned inputs are copied first. Raises ValueError where the tensors are not those planned for.
    """
    _check_tensors(hidden_states, banks, topk_weights, topk_ids)
    _check_plan(plan, hidden_states, banks, topk_ids)
    if not hidden_states.shape[0]:
        return torch.empty_like(hidden_states, memory_format=torch.contiguous_format)
    x, weights, ids = (_plain(tensor) for tensor in (hidden_states, topk_weights, topk_ids))
    on_device = torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()
    with on_device:
        block_routes, block_expert = route_blocks(plan, ids)
        rows, top_k = x, ids.shape[1]
        if weigh := plan.launch("weigh_input"):
            rows = x.new_empty(ids.numel(), x.shape[1])
            _by_columns(weigh, x=x, topk_weights=weights, out=rows, top_k=top_k)
        blocks = {
            "topk_weights": weights,
            "block_routes": block_routes,
            "block_expert": block_expert,
            "routes": ids.numel(),
        }
        gate_up = _gemm(
            plan.launch("gate_up"), rows, banks.gate_up_packed, banks.gate_up_scale, banks.gate_up_global, blocks
        )
        act = x.new_empty(ids.numel(), banks.intermediate)
        switches = {"experts": banks.experts, "alpha": activation_alpha, "limit": activation_limit}
        _by_columns(plan.launch("activation"), gate_up=gate_up, topk_ids=ids, out=act, **switches)
        down = _gemm(plan.launch("down"), act, banks.down_packed, banks.down_scale, banks.down_global, blocks)
        out = torch.empty_like(x)
        total = {"route_out": down, "topk_ids": ids, "out": out, "top_k": top_k, "experts": banks.experts}
        _by_columns(plan.launch("sum_routes"), **total)
    return out


def route_blocks(plan: LayerPlan, topk_ids: Tensor) -> tuple[Tensor, Tensor]:
    """The routing as blocks: `block_routes` i32 [blocks, BLOCK_M] and `block_expert` i32 [blocks], without a host sync.

    The number of blocks is the most that any routing of so many routes needs; those not needed have expert -1.
    `topk_ids` is a contiguous i32 [T, top_k]. See kernels/device/routing.py for what a block holds.
    """
    routes, experts = topk_ids.numel(), plan.shape.experts
    chunks = triton.cdiv(routes, prefill.ROUTE_CHUNK)
    list_blocks = plan.launch("list_blocks")
    block_m = list_blocks.constexpr("BLOCK_M")
    blocks = (routes + min(experts, routes) * (block_m - 1)) // block_m
    counts, totals = topk_ids.new_empty(chunks, experts), topk_ids.new_empty(experts)
    first_slot, block_expert = torch.empty_like(totals), topk_ids.new_empty(blocks)
    block_routes = topk_ids.new_empty(blocks, block_m)

    count, scan = plan.launch("count_routes"), plan.launch("scan_counts")
    expert_tiles = triton.cdiv(experts, count.constexpr("BLOCK_E"))
    _start(count, (chunks, expert_tiles), topk_ids=topk_ids, counts=counts, routes=routes, experts=experts)
    scan_grid = (triton.cdiv(experts, scan.constexpr("BLOCK_E")),)
    _start(scan, scan_grid, counts=counts, totals=totals, chunks=chunks, experts=experts)
    lists = {"first_slot": first_slot, "block_routes": block_routes, "routes": routes, "experts": experts}
    _start(list_blocks, (blocks,), totals=totals, block_expert=block_expert, **lists)
    _start(plan.launch("place_routes"), (chunks,), topk_ids=topk_ids, counts=counts, **lists)
    return block_routes, block_expert


def _gemm(launch: Launch, x: Tensor, packed: Tensor, scale: Tensor, global_scale: Tensor, blocks: dict) -> Tensor:
    """[routes, N] from the rows of `x`, which are one per route or one per token."""
    rows, routes, expert_blocks = packed.shape[1], blocks["routes"], blocks["block_expert"].numel()
    if dict(launch.arguments)["scale"] == "*u8":
        scale = scale.view(torch.uint8)
    out = x.new_empty(routes, rows)
    sizes = {"N": rows, "k_units": x.shape[1] // launch.constexpr("K_UNIT")}
    grid = (expert_blocks * triton.cdiv(rows, launch.constexpr("BLOCK_N")),)
    tensors = {"x": x, "packed": packed, "scale": scale, "global_scale": global_scale, "out": out}
    _start(launch, grid, **tensors, **blocks, **sizes, rows_per_input=routes // x.shape[0])
    return out


def _by_columns(launch: Launch, *, out: Tensor, **arguments) -> None:
    """One program per row of `out` and per block of its columns."""
    grid = (out.shape[0], triton.cdiv(out.shape[1], launch.constexpr("BLOCK")))
    _start(launch, grid, out=out, columns=out.shape[1], **arguments)


def _start(launch: Launch, grid: tuple[int, ...], **arguments):
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages, "enable_fp_fusion": launch.fp_fusion}
    ordered = [arguments.pop(name) for name, _ in launch.arguments]
    if arguments:
        raise TypeError(f"{launch.stage} does not take {', '.join(arguments)}")
    return device_function(launch)[grid](*ordered, **dict(launch.constexprs), **options)


def _plain(tensor: Tensor) -> Tensor:
    """`tensor` contiguous and 16-byte aligned: itself where it is, else a copy."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % 16 else tensor


def _dtype_name(hidden_states: Tensor) -> str:
    return "bf16" if hidden_states.dtype == torch.bfloat16 else "fp16"


def _check_tensors(hidden_states: Tensor, banks: ExpertBanks, topk_weights: Tensor, topk_ids: Tensor) -> None:
    if not isinstance(banks, ExpertBanks):
        raise TypeError(f"banks is a {type(banks).__name__}, but should be ExpertBanks")
    dtypes = {
        "hidden_states": (hidden_states, (torch.bfloat16, torch.float16)),
        "topk_weights": (topk_weights, (torch.float32,)),
        "topk_ids": (topk_ids, (torch.int32,)),
    }
    for name, (tensor, allowed) in dtypes.items():
        if not isinstance(tensor, Tensor) or tensor.dtype not in allowed:
            found = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"{name} is {found}, but should be {' or '.join(map(str, allowed))}")
        if tensor.device != banks.device:
            raise ValueError(f"{name} is on {tensor.device}, but should be on {banks.device} like the banks")
    if hidden_states.dim() != 2 or hidden_states.shape[1] != banks.hidden:
        raise ValueError(f"hidden_states has shape {list(hidden_states.shape)}, but should be [tokens, {banks.hidden}]")
    tokens = hidden_states.shape[0]
    for name, tensor in (("topk_weights", topk_weights), ("topk_ids", topk_ids)):
        if tensor.dim() != 2 or tensor.shape[0] != tokens or not tensor.shape[1]:
            raise ValueError(f"{name} has shape {list(tensor.shape)}, but should be [{tokens}, top_k]")
    if topk_weights.shape != topk_ids.shape:
        raise ValueError(
            f"topk_weights has shape {list(topk_weights.shape)}, but should be {list(topk_ids.shape)} like topk_ids"
        )


def _check_plan(plan: LayerPlan, hidden_states: Tensor, banks: ExpertBanks, topk_ids: Tensor) -> None:
    shape = banks.layer_shape(topk_ids.shape[1])
    if shape != plan.shape:
        raise ValueError(f"plan is for {plan.shape}, but the tensors are of {shape}")
    if hidden_states.dtype != torch_dtype(plan.dtype):
        raise ValueError(f"plan is for {plan.dtype}, but hidden_states is {hidden_states.dtype}")
    if hidden_states.shape[0] and not plan.launches:
        raise ValueError(f"plan is for zero tokens, but hidden_states has {hidden_states.shape[0]}")
    if not hidden_states.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(
            f"hidden_states is on {hidden_states.device}, but should be on a GPU unless TRITON_INTERPRET=1"
        )
