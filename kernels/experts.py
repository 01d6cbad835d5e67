"""Runs a LayerPlan on tensors. What runs is what the plan says, launch by launch."""

import contextlib
import warnings
from functools import cache

import torch
import triton
from torch import Tensor

from ..contract import gpu_names, gpus
from ..contract.banks import ExpertBanks
from . import hopper, hopper_gemv, hopper_layer, prefill, w4a4_layer
from .arguments import as_declared, check_ids, check_plan, check_sizes, check_tensors, dtype_name, plain, positive
from .columns import by_columns
from .hopper_banks import PreparedBanks, rearranged
from .launch import Launch, start
from .plan import LayerPlan, plan_layer
from .w4a4_layer import Scales


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
    scales: Scales | None = None,
) -> Tensor:
    """The expert layer on the tensors' own GPU: [T, H] in the dtype of `hidden_states`.

    `hidden_states` [T, H] bf16 or fp16; `topk_weights` f32 and `topk_ids` i32 [T, top_k]; an id outside [0, E) adds
    nothing. `activation_alpha` and `activation_limit` are swigluoai's. `scales`: Scales.of(banks), which W4A4 needs;
    None computes them in the first call with these banks, which waits for the GPU, so that no graph can capture it,
    and remembers them. "auto" needs them where its plan is W4A4; on banks from `prepared` it is the kernel for these.
    CPU tensors run in Triton's interpreter under the portable plan, once ci/interpreter.py has repaired it. Raises
    TypeError or ValueError, naming the argument, before anything is launched.
    """
    check_tensors(hidden_states, banks, topk_weights, topk_ids)
    plan = plan_layer(
        gpu_of(hidden_states.device),
        banks.layer_shape(topk_ids.shape[1]),
        hidden_states.shape[0],
        triton=release(),
        dtype=dtype_name(hidden_states),
        activation=activation,
        weight_on_input=weight_on_input,
        input_scales=banks.gate_up_input_scale is not None,
        kernel=hopper.PREPARED if kernel == "auto" and isinstance(banks, PreparedBanks) else kernel,
    )
    options = {"activation_alpha": activation_alpha, "activation_limit": activation_limit, "scales": scales}
    return run(plan, hidden_states, banks, topk_weights, topk_ids, **options)


def prepared(banks: ExpertBanks) -> ExpertBanks:
    """`banks` as kernel="prefill_w4a16_prepared" reads them: PreparedBanks, of the same size, where it can be had.

    That is on a GPU of sm_90, for sizes that hopper.lacks has nothing against; elsewhere it reads `banks` themselves.
    """
    if hopper.lacks(gpu_of(banks.device), banks.layer_shape(1), release()):
        return banks
    return rearranged(banks)


@cache
def release() -> str:
    """The Triton release at hand, as plans name it."""
    return triton.__version__.split("+")[0]


def gpu_of(device: torch.device) -> gpus.Gpu:
    """What plans are made for on `device`: its GPU, and no particular one for the CPU."""
    if device.type != "cuda":
        return gpus.PORTABLE
    gpu = gpus.current(device.index)
    _warn_once(gpu)
    return gpu


@cache
def _warn_once(gpu: gpus.Gpu) -> None:
    """Says what of `gpu` is unknown, and what it gets instead."""
    if not gpus.is_known(gpu):
        warnings.warn(
            f"{gpu.name} has an unknown architecture {gpu.capability}: it gets the portable plan", stacklevel=4
        )
    elif not gpu_names.has_known_name(gpu):
        safe = gpu_names.SAFE
        warnings.warn(
            f"{gpu.name!r} is no known name of a GPU: it is tuned as {safe.name}, rho {safe.rho}", stacklevel=4
        )


def run(
    plan: LayerPlan,
    hidden_states: Tensor,
    banks: ExpertBanks,
    topk_weights: Tensor,
    topk_ids: Tensor,
    *,
    activation_alpha: float = 1.702,
    activation_limit: float = 7.0,
    scales: Scales | None = None,
) -> Tensor:
    """Runs `plan`, also one made for another GPU, on the tensors that `fused_experts` describes.

    Strided and misaligned inputs are copied first. There is no backward pass. Raises ValueError where the tensors are
    not those planned for, where alpha or limit is not positive, and on the CPU without the repaired interpreter.
    """
    check_tensors(hidden_states, banks, topk_weights, topk_ids)
    check_plan(plan, hidden_states, banks, topk_ids)
    _check_card(plan, hidden_states.device)
    if not isinstance(scales, Scales | None):
        raise TypeError(f"scales is a {type(scales).__name__}, but should be Scales or None")
    alpha, limit = positive("activation_alpha", activation_alpha), positive("activation_limit", activation_limit)
    if not hidden_states.shape[0]:
        return torch.empty_like(hidden_states, memory_format=torch.contiguous_format)
    x, weights, ids = (plain(tensor) for tensor in (hidden_states, topk_weights, topk_ids))
    with torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext():
        if plan.launch("quantize") and scales is None:
            scales = Scales.remembered(banks)
        return _layer(plan, x, banks, weights, ids, alpha, limit, scales)


def _check_card(plan: LayerPlan, device: torch.device) -> None:
    """A plan with a launch for sm_90 is for there alone, and for the releases that compile it."""
    mine = {hopper.GATE_UP, hopper.DOWN, hopper_gemv.GEMV} & {launch.kernel for launch in plan.launches}
    if mine and (lacks := hopper.card_lacks(gpu_of(device), release())):
        raise ValueError(f"plan is {plan.kernel}'s for sm_90, but should be another on {device}: {lacks}")


def _layer(
    plan: LayerPlan,
    x: Tensor,
    banks: ExpertBanks,
    weights: Tensor,
    ids: Tensor,
    alpha: float,
    limit: float,
    scales: Scales | None,
) -> Tensor:
    """The plan's launches, in order, on contiguous and aligned tensors."""
    routed = routed_by(plan, weights, ids)
    rows, sum_routes = x, plan.launch("sum_routes")
    if weigh := plan.launch("weigh_input"):
        rows = x.new_empty(ids.numel(), banks.hidden)
        by_columns(weigh, x=x, topk_weights=weights, out=rows, top_k=ids.shape[1])
    if plan.launch("quantize"):
        limits = {"activation_alpha": alpha, "activation_limit": limit}
        out_rows = ids.numel() if sum_routes else len(x)
        down = w4a4_layer.run_experts(plan, rows, banks, scales, routed, out_rows, **limits)
    elif plan.launch("interleave_k"):
        down = hopper_layer.run_experts(plan, rows, banks, routed, activation_alpha=alpha, activation_limit=limit)
    else:
        down = _w4a16_experts(plan, rows, banks, routed, ids, alpha, limit)
    if not sum_routes:  # by atomics already
        return down
    out = torch.empty_like(x)
    by_columns(sum_routes, route_out=down, out=out, top_k=ids.shape[1], topk_ids=ids, experts=banks.experts)
    return out


def _w4a16_experts(
    plan: LayerPlan, x: Tensor, banks: ExpertBanks, routed: tuple[int, dict], ids: Tensor, alpha: float, limit: float
) -> Tensor:
    """The GEMMs and the activation between them: [R, H], a row per route."""
    gate_up_banks = (banks.gate_up_packed, banks.gate_up_scale, banks.gate_up_global)
    gate_up = gemm(plan.launch("gate_up"), x, *gate_up_banks, *routed)
    act, routing = x.new_empty(ids.numel(), banks.intermediate), {"topk_ids": ids, "experts": banks.experts}
    by_columns(plan.launch("activation"), gate_up=gate_up, out=act, alpha=alpha, limit=limit, **routing)
    return gemm(plan.launch("down"), act, banks.down_packed, banks.down_scale, banks.down_global, *routed)


def routed_by(plan: LayerPlan, weights: Tensor, ids: Tensor) -> tuple[int, dict]:
    """How a GEMM finds its routes: programs for each of its blocks of weight rows, and the arguments that say it.

    `weights` f32 and `ids` i32 are [T, top_k]. Blocks of routes that share an expert have a program each, or, in a plan
    that makes no blocks, single routes. Raises TypeError or ValueError for other ids.
    """
    check_ids(ids)
    if not plan.launch("list_blocks"):
        return ids.numel(), {"topk_ids": ids, "topk_weights": weights, "experts": plan.shape.experts}
    block_routes, block_expert = route_blocks(plan, ids)
    blocks = {"block_routes": block_routes, "block_expert": block_expert, "routes": ids.numel()}
    return block_expert.numel(), {**blocks, "topk_weights": weights}


def route_blocks(plan: LayerPlan, topk_ids: Tensor) -> tuple[Tensor, Tensor]:
    """The routing as blocks: `block_routes` i32 [blocks, BLOCK_M] and `block_expert` i32 [blocks], without a host sync.

    The number of blocks is the most that any routing of so many routes needs; those not needed have expert -1.
    `topk_ids` is a contiguous i32 [T, top_k]. See kernels/device/routing.py for what a block holds.
    """
    check_ids(topk_ids)
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
    start(count, (chunks, expert_tiles), topk_ids=topk_ids, counts=counts, routes=routes, experts=experts)
    scan_grid = (triton.cdiv(experts, scan.constexpr("BLOCK_E")),)
    start(scan, scan_grid, counts=counts, totals=totals, chunks=chunks, experts=experts)
    lists = {"first_slot": first_slot, "block_routes": block_routes, "routes": routes, "experts": experts}
    start(list_blocks, (blocks,), totals=totals, block_expert=block_expert, **lists)
    start(plan.launch("place_routes"), (chunks,), topk_ids=topk_ids, counts=counts, **lists)
    return block_routes, block_expert


def gemm(
    launch: Launch, x: Tensor, packed: Tensor, scale: Tensor, global_scale: Tensor, programs: int, routed: dict
) -> Tensor:
    """[routes, N] of x's dtype: a grouped GEMM of the rows of `x` [R, K], one per route or one per token.

    `packed` u8 [E, N, K/2], `scale` e4m3 [E, N, K/16], `global_scale` f32 [E, N]; routed_by gives the last two. Raises
    ValueError for an N or a K that the launch is not compiled for.
    """
    check_sizes(launch, k=x.shape[1], N=packed.shape[1])
    rows, routes = packed.shape[1], routed["topk_weights"].numel()
    packed, scale = as_declared(launch, "packed", packed), as_declared(launch, "scale", scale)
    out = x.new_empty(routes, rows)
    sizes = {"N": rows, "k_units": x.shape[1] // launch.constexpr("K_UNIT")}
    grid = (programs * triton.cdiv(rows, launch.constexpr("BLOCK_N")),)
    tensors = {"x": x, "packed": packed, "scale": scale, "global_scale": global_scale, "out": out}
    if "table" in dict(launch.arguments):
        tensors["table"] = _code_values(x.device)
    start(launch, grid, **tensors, **routed, **sizes, rows_per_input=routes // x.shape[0])
    return out


@cache
def _code_values(device: torch.device) -> Tensor:
    """fp32 [16]: the values of the e2m1 codes. The first call on a device copies, so no graph can capture that one."""
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    return torch.cat([magnitudes, -magnitudes]).to(device)
