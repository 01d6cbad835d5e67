"""The launches of a W4A4 prefill layer: routing, the quantizer, gate_up with its activation, down, the sum. Pure."""

from dataclasses import dataclass
from functools import cache

from ..contract.gpus import Gpu, architecture
from ..contract.shapes import LayerShape
from . import pointwise, prefill
from .launch import Launch, declare
from .tuning import RAGGED_BLOCK_KB, Tile, matrix_instruction


@dataclass(frozen=True)
class Form:
    """`atomic`: down adds up a token's routes by atomics, in any order, each sum rounded to the activations' dtype."""

    atomic: bool = False


DEFAULT = "prefill_w4a4"
FORMS: dict[str, Form] = {DEFAULT: Form(), "prefill_w4a4_atomic": Form(atomic=True)}


# (at least so many tokens per expert, BLOCK_M): those of W4A16, but for its block of 128. Not measured.
BLOCK_M_STEPS: tuple[tuple[int, int], ...] = ((24, 64), (12, 32), (0, 16))
GATE_UP_WARPS = 8  # for twice as many sums as down has; with 4, sm_80 spills


def tiles(shape: LayerShape, tokens_per_expert: float) -> tuple[Tile, Tile]:
    """The tiles of gate_up and down. BLOCK_N counts columns of gate_up's output, of which each has two weight rows."""
    block_m = next(block_m for least, block_m in BLOCK_M_STEPS if tokens_per_expert >= least)
    of_gate_up, of_down = (RAGGED_BLOCK_KB if k % 32 else Tile.block_kb for k in (shape.hidden, shape.intermediate))
    return Tile(block_m, block_kb=of_gate_up, num_warps=GATE_UP_WARPS), Tile(block_m, block_kb=of_down)


def launches(
    gpu: Gpu,
    shape: LayerShape,
    form: Form,
    tiles: tuple[Tile, Tile],
    dtype: str,
    activation: str,
    weight_on_input: bool,
) -> tuple[Launch, ...]:
    """All launches in the order they run, for activations of `dtype`; `tiles` of gate_up and down as in prefill.py."""
    gate_up, down = tiles
    return (
        *prefill.routing(shape.experts, gate_up.block_m),
        *([pointwise.weigh_input(dtype)] if weight_on_input else []),
        pointwise.quantize(dtype),
        _gate_up(gpu, gate_up, shape.hidden, activation),
        _down(gpu, form, dtype, down, shape.intermediate, weighted=not weight_on_input),
        *([] if form.atomic else [pointwise.sum_routes(dtype)]),
    )


@cache
def _gate_up(gpu: Gpu, tile: Tile, k: int, activation: str) -> Launch:
    scale = _scale(gpu)
    return declare(
        "gate_up",
        "w4a4.w4a4_gate_up",
        f"x: *u8, x_scale: {scale}, packed: *u8, scale: {scale}, alpha: *fp32, stored: *fp32, block_routes: *i32, "
        "block_expert: *i32, out: *u8, out_scale: *u8, N: i32, k_units: i32, routes: i32, rows_per_input: i32, "
        "activation_alpha: fp32, activation_limit: fp32",
        "N",
        {**_sizes(tile, k), "ACTIVATION": activation},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        instruction=matrix_instruction(tile, architecture(gpu)),
    )


@cache
def _down(gpu: Gpu, form: Form, dtype: str, tile: Tile, k: int, weighted: bool) -> Launch:
    scale = _scale(gpu)
    return declare(
        "down",
        "w4a4.w4a4_down",
        f"x: *u8, x_scale: {scale}, packed: *u8, scale: {scale}, alpha: *fp32, topk_weights: *fp32, "
        f"block_routes: *i32, block_expert: *i32, out: *{dtype}, N: i32, k_units: i32, routes: i32, "
        "rows_per_output: i32",
        "N",
        {**_sizes(tile, k), "WEIGHTED": weighted, "ATOMIC": form.atomic},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        instruction=matrix_instruction(tile, architecture(gpu)),
    )


def _sizes(tile: Tile, k: int) -> dict[str, int]:
    sizes = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_KB": tile.block_kb}
    return {**sizes, "K_UNIT": 16 if k % 32 else 32, "NATIVE": False}


def _scale(gpu: Gpu) -> str:
    return "*fp8e4nv" if architecture(gpu).native_e4m3 else "*u8"
