"""Runs a W4A4 plan on tensors, and computes what such a layer needs once: alphas and global scales."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from ..contract.banks import ExpertBanks
from .arguments import as_declared
from .launch import Launch, start
from .plan import LayerPlan
from .quantizer import start_quantize


@dataclass(frozen=True, eq=False)
class Scales:
    """What W4A4 multiplies with, on the GPU of the banks, all f32: per GEMM, `alpha` and the quantizer's `stored`.

    alpha = input scale * weight global, [E, 2I] and [E, H], and stored = 1 / input scale, [1], both rounded once; the
    input scale is the largest of the layer's experts.
    """

    gate_up_alpha: Tensor
    gate_up_stored: Tensor
    down_alpha: Tensor
    down_stored: Tensor

    @classmethod
    def of(cls, banks: ExpertBanks) -> "Scales":
        """Waits for the GPU. Raises ValueError for input scales that are missing, or not finite and above 0."""
        gate_up = _scales("gate_up_input_scale", banks.gate_up_input_scale, banks.gate_up_global)
        return cls(*gate_up, *_scales("down_input_scale", banks.down_input_scale, banks.down_global))


def _scales(name: str, input_scale: Tensor | None, global_scale: Tensor) -> tuple[Tensor, Tensor]:
    if input_scale is None:
        raise ValueError(f"{name} is None, but should be given: W4A4 quantizes activations with it")
    if not ((input_scale > 0) & input_scale.isfinite()).all():
        raise ValueError(f"{name} holds {input_scale.tolist()}, but should be finite and above 0")
    largest = input_scale.max()
    return largest * global_scale, largest.reciprocal().reshape(1)


Rows = tuple[Tensor, Tensor]  # of NVFP4: packed u8 [R, K/2] and block scales u8 [R, K/16]


def run_experts(
    plan: LayerPlan, x: Tensor, banks: ExpertBanks, scales: Scales, routed: tuple[int, dict], out_rows: int, **options
) -> Tensor:
    """What a W4A4 plan does between the weights on the input and the sum over top_k: `out_rows` rows of [., H].

    `x` is [T, H], or [T * top_k, H] with a row per route; `routed` as experts.routed_by gives it; `options` are
    activation_alpha and activation_limit. `out_rows` is T where the plan sums routes by atomics, else T * top_k.
    """
    quantized = start_quantize(plan.launch("quantize"), x, scales.gate_up_stored)
    h = gate_up(plan.launch("gate_up"), quantized, banks, scales, routed, **options)
    return down(plan.launch("down"), h, banks, scales, routed, x.new_empty(out_rows, banks.hidden))


def gate_up(launch: Launch, x: Rows, banks: ExpertBanks, scales: Scales, routed: tuple[int, dict], **options) -> Rows:
    """The activations that enter down, a row per route, quantized with the second input scale."""
    blocks, lists = routed
    lists = {name: value for name, value in lists.items() if name != "topk_weights"}
    routes, columns = lists["routes"], banks.intermediate
    out = torch.empty(routes, columns // 2, dtype=torch.uint8, device=x[0].device)
    out_scale = torch.empty(routes, columns // 16, dtype=torch.uint8, device=x[0].device)
    operands = _operands(launch, x, banks.gate_up_packed, banks.gate_up_scale)
    operands |= {"alpha": scales.gate_up_alpha, "stored": scales.down_stored, "out": out, "out_scale": out_scale}
    sizes = {"N": columns, "k_units": banks.hidden // launch.constexpr("K_UNIT")}
    grid = (blocks * triton.cdiv(columns, launch.constexpr("BLOCK_N")),)
    start(launch, grid, **operands, **lists, **sizes, rows_per_input=routes // len(x[0]), **options)
    return out, out_scale


def down(launch: Launch, h: Rows, banks: ExpertBanks, scales: Scales, routed: tuple[int, dict], out: Tensor) -> Tensor:
    """Writes `out` [R, H], a row per route; a launch that is ATOMIC adds up a token's routes in `out` [T, H]."""
    blocks, lists = routed
    if launch.constexpr("ATOMIC"):
        out.zero_()
    operands = _operands(launch, h, banks.down_packed, banks.down_scale)
    sizes = {"N": banks.hidden, "k_units": banks.intermediate // launch.constexpr("K_UNIT")}
    grid = (blocks * triton.cdiv(banks.hidden, launch.constexpr("BLOCK_N")),)
    rows_per_output = lists["routes"] // len(out)
    start(launch, grid, **operands, alpha=scales.down_alpha, out=out, **lists, **sizes, rows_per_output=rows_per_output)
    return out


def _operands(launch: Launch, x: Rows, packed: Tensor, scale: Tensor) -> dict[str, Tensor]:
    tensors = {"x": x[0], "x_scale": x[1], "packed": packed, "scale": scale}
    return {name: as_declared(launch, name, tensor) for name, tensor in tensors.items()}
