"""The launches of the W4A16 prefill layer: routing, two grouped GEMMs, the activation between, the sum behind. Pure."""

from functools import cache

from ..contract.gpus import Gpu, architecture
from ..contract.shapes import LayerShape
from .launch import Launch
from .tuning import Tile, matrix_instruction

NAME = "prefill_w4a16"

# Tiles of the small kernels, per program. A chunk is ROUTE_CHUNK routes; scan_counts takes SCAN_CHUNKS of them a step.
ROUTE_CHUNK = 128
EXPERT_BLOCK = 64
SCAN_CHUNKS, SCAN_EXPERTS = 128, 16
COLUMN_BLOCK = 512


def launches(
    gpu: Gpu, shape: LayerShape, tiles: tuple[Tile, Tile], dtype: str, activation: str, weight_on_input: bool
) -> tuple[Launch, ...]:
    """All launches in the order they run, for activations of `dtype` ("bf16" or "fp16").

    `tiles` are those of gate_up and of down; they share the routing, so they have one BLOCK_M.
    """
    gate_up, down = tiles
    return (
        *_routing(shape.experts, gate_up.block_m),
        *([_weigh_input(dtype)] if weight_on_input else []),
        _gemm("gate_up", gpu, dtype, gate_up, shape.hidden, weighted=False),
        _activation(dtype, activation),
        _gemm("down", gpu, dtype, down, shape.intermediate, weighted=not weight_on_input),
        _sum(dtype),
    )


def _launch(stage: str, kernel: str, arguments: str, divisible: str, constexprs: dict, **rest) -> Launch:
    """`arguments` reads "name: type, name: type"; every pointer is 16-byte aligned, so is declared divisible."""
    typed = tuple(tuple(part.split(": ")) for part in arguments.split(", "))
    declared = tuple(name for name, kind in typed if kind.startswith("*") or name in divisible.split())
    return Launch(stage, kernel, typed, declared, tuple(constexprs.items()), **rest)


@cache
def _routing(experts: int, block_m: int) -> tuple[Launch, ...]:
    padded_experts = max(512, 1 << (experts - 1).bit_length())  # one binary for every layer of up to 512 experts
    return (
        _launch(
            "count_routes",
            "routing.count_routes",
            "topk_ids: *i32, counts: *i32, routes: i32, experts: i32",
            "",
            {"CHUNK": ROUTE_CHUNK, "BLOCK_E": EXPERT_BLOCK},
        ),
        _launch(
            "scan_counts",
            "routing.scan_counts",
            "counts: *i32, totals: *i32, chunks: i32, experts: i32",
            "",
            {"BLOCK_C": SCAN_CHUNKS, "BLOCK_E": SCAN_EXPERTS},
        ),
        _launch(
            "list_blocks",
            "routing.list_blocks",
            "totals: *i32, first_slot: *i32, block_expert: *i32, block_routes: *i32, routes: i32, experts: i32",
            "",
            {"BLOCK_M": block_m, "EXPERTS": padded_experts},
        ),
        _launch(
            "place_routes",
            "routing.place_routes",
            "topk_ids: *i32, counts: *i32, first_slot: *i32, block_routes: *i32, routes: i32, experts: i32",
            "",
            {"CHUNK": ROUTE_CHUNK},
        ),
    )


@cache
def _gemm(stage: str, gpu: Gpu, dtype: str, tile: Tile, k: int, weighted: bool) -> Launch:
    facts = architecture(gpu)
    scale = "*fp8e4nv" if facts.native_e4m3 else "*u8"
    sizes = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_KB": tile.block_kb}
    return _launch(
        stage,
        "gemm.w4a16_gemm",
        f"x: *{dtype}, packed: *u8, scale: {scale}, global_scale: *fp32, topk_weights: *fp32, block_routes: *i32, "
        f"block_expert: *i32, out: *{dtype}, N: i32, k_units: i32, routes: i32, rows_per_input: i32",
        "N",
        {**sizes, "K_UNIT": 16 if k % 32 else 32, "WEIGHTED": weighted},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        instruction=matrix_instruction(tile, facts),
    )


@cache
def _weigh_input(dtype: str) -> Launch:
    arguments = f"x: *{dtype}, topk_weights: *fp32, out: *{dtype}, columns: i32, top_k: i32"
    return _launch("weigh_input", "pointwise.weigh_input", arguments, "columns", {"BLOCK": COLUMN_BLOCK})


@cache
def _activation(dtype: str, activation: str) -> Launch:
    return _launch(
        "activation",
        "pointwise.gated_activation",
        f"gate_up: *{dtype}, topk_ids: *i32, out: *{dtype}, columns: i32, experts: i32, alpha: fp32, limit: fp32",
        "columns",
        {"ACTIVATION": activation, "BLOCK": COLUMN_BLOCK},
    )


@cache
def _sum(dtype: str) -> Launch:
    arguments = f"route_out: *{dtype}, topk_ids: *i32, out: *{dtype}, columns: i32, top_k: i32, experts: i32"
    return _launch("sum_routes", "pointwise.sum_routes", arguments, "columns", {"BLOCK": COLUMN_BLOCK})
