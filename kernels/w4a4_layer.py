"""Runs a W4A4 plan on tensors, and computes what such a layer needs once: alphas and global scales."""

from dataclasses import dataclass
from functools import cache
from weakref import WeakKeyDictionary

import torch
import triton
from torch import Tensor

from ..contract.banks import ExpertBanks
from .arguments import as_declared, check_sizes
from .launch import Launch, start
from .plan import LayerPlan
from .quantizer import start_quantize
from .w4a4 import PROGRAMS_PER_SM, SPECIALIZED_DOWN, SPECIALIZED_GATE_UP, SPECIALIZED_PER_SM

INTERPRETED_PROGRAMS = 3  # few, so that each of them has several tiles


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

    @classmethod
    def remembered(cls, banks: ExpertBanks) -> "Scales":
        """Those of an earlier call, unless `banks` were written to since; else `of`, which no graph can capture.

        Raises ValueError as `of` does, and for a first call inside a graph capture.
        """
        written = _writes(banks)
        before, scales = _REMEMBERED.get(banks, (None, None))
        if before != written:
            if banks.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise ValueError("scales is None, but should be Scales.of(banks), computed before the graph capture")
            scales = cls.of(banks)
            _REMEMBERED[banks] = written, scales
        return scales


_REMEMBERED: WeakKeyDictionary[ExpertBanks, tuple[tuple[int, ...], Scales]] = WeakKeyDictionary()


def _writes(banks: ExpertBanks) -> tuple[int, ...]:
    """How often what Scales are made of was written to in place; tensors of inference mode do not count that."""
    made_of = banks.gate_up_input_scale, banks.gate_up_global, banks.down_input_scale, banks.down_global
    return tuple(-1 if one is None or one.is_inference() else one._version for one in made_of)


def _scales(name: str, input_scale: Tensor | None, global_scale: Tensor) -> tuple[Tensor, Tensor]:
    if input_scale is None:
        raise ValueError(f"{name} is None, but should be given: W4A4 quantizes activations with it")
    if not ((input_scale > 0) & input_scale.isfinite()).all():
        raise ValueError(f"{name} holds {input_scale.tolist()}, but should be finite and above 0")
    largest = input_scale.max()
    return largest * global_scale, largest.reciprocal().reshape(1)


Rows = tuple[Tensor, Tensor]  # of NVFP4: packed u8 [R, K/2] and block scales u8 [R, K/16]
Weights = tuple[Tensor, Tensor, Tensor]  # packed u8 [E, N, K/2], block scales e4m3 [E, N, K/16] and alpha f32 [E, N]


def run_experts(
    plan: LayerPlan, x: Tensor, banks: ExpertBanks, scales: Scales, routed: tuple[int, dict], out_rows: int, **options
) -> Tensor:
    """What a W4A4 plan does between the weights on the input and the sum over top_k: `out_rows` rows of [., H].

    `x` is [T, H], or [T * top_k, H] with a row per route; `routed` as experts.routed_by gives it; `options` are
    activation_alpha and activation_limit. `out_rows` is T where the plan sums routes by atomics, else T * top_k.
    """
    rows = start_quantize(plan.launch("quantize"), x, scales.gate_up_stored)
    weights = banks.gate_up_packed, banks.gate_up_scale, scales.gate_up_alpha
    h = gate_up(plan.launch("gate_up"), rows, weights, scales.down_stored, routed, **options)
    weights, out = (banks.down_packed, banks.down_scale, scales.down_alpha), x.new_empty(out_rows, banks.hidden)
    return down(plan.launch("down"), h, weights, routed, out)


def gate_up(
    launch: Launch, x: Rows, weights: Weights, stored: Tensor, routed: tuple[int, dict], **options: float
) -> Rows:
    """f(gate) * up in NVFP4 with the global scale `stored`, a row per route; `options` as in run_experts."""
    blocks, lists = routed
    lists = {name: value for name, value in lists.items() if name != "topk_weights"}
    routes, columns = lists["routes"], weights[0].shape[1] // 2
    check_sizes(launch, k=2 * x[0].shape[1], N=columns)
    out, out_scale = (x[0].new_empty(routes, columns // per_byte) for per_byte in (2, 16))
    operands = _operands(launch, x, weights) | {"stored": stored, "out": out, "out_scale": out_scale, "N": columns}
    programs = blocks * triton.cdiv(columns, launch.constexpr("BLOCK_N"))
    if launch.kernel == SPECIALIZED_GATE_UP:
        operands["blocks"] = blocks
        programs = min(programs, resident_programs(out.device, SPECIALIZED_PER_SM))
    start(launch, (programs,), **operands, **lists, rows_per_input=routes // len(x[0]), **options)
    return out, out_scale


def down(launch: Launch, h: Rows, weights: Weights, routed: tuple[int, dict], out: Tensor) -> Tensor:
    """Writes `out` [R, H], a row per route; a launch that is ATOMIC adds up a token's routes in `out` [T, H]."""
    blocks, lists = routed
    sizes = {"N": weights[0].shape[1], "blocks": blocks}
    check_sizes(launch, k=2 * h[0].shape[1], N=sizes["N"])
    programs = blocks * triton.cdiv(sizes["N"], launch.constexpr("BLOCK_N"))
    if launch.kernel == SPECIALIZED_DOWN:
        programs = min(programs, resident_programs(out.device, SPECIALIZED_PER_SM))
    else:
        sizes["rows_per_output"] = lists["routes"] // len(out)
        if launch.constexpr("ATOMIC"):
            out.zero_()
        if launch.constexpr("PERSISTENT"):
            programs = min(programs, resident_programs(out.device, PROGRAMS_PER_SM))
    start(launch, (programs,), **_operands(launch, h, weights), out=out, **lists, **sizes)
    return out


@cache
def resident_programs(device: torch.device, per_sm: int) -> int:
    """How many programs a persistent launch has on `device`, at most; it waits for nothing."""
    if device.type != "cuda":
        return INTERPRETED_PROGRAMS
    return per_sm * torch.cuda.get_device_properties(device).multi_processor_count


def _operands(launch: Launch, x: Rows, weights: Weights) -> dict[str, Tensor | int]:
    tensors = {"x": x[0], "x_scale": x[1], "packed": weights[0], "scale": weights[1]}
    operands = {name: as_declared(launch, name, tensor) for name, tensor in tensors.items()}
    return operands | {"alpha": weights[2], "k_units": 2 * x[0].shape[1] // launch.constexpr("K_UNIT")}
