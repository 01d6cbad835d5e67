"""The launches of a W4A16 prefill layer: routing, two grouped GEMMs, the activation between, the sum behind. Pure."""

from functools import cache, lru_cache

from ..contract.gpus import Gpu, architecture
from ..contract.shapes import LayerShape
from . import pointwise
from .launch import Launch, declare
from .tiles import Tile, matrix_instruction
from .variants import FORMS, WORD_K, Variant

# Tiles of the small kernels, per program. A chunk is ROUTE_CHUNK routes; scan_counts takes SCAN_CHUNKS of them a step.
ROUTE_CHUNK = 128
EXPERT_BLOCK = 64
SCAN_CHUNKS, SCAN_EXPERTS = 128, 16


@lru_cache(maxsize=1024)
def launches(
    gpu: Gpu,
    shape: LayerShape,
    variant: Variant,
    tiles: tuple[Tile, Tile],
    dtype: str,
    activation: str,
    weight_on_input: bool,
) -> tuple[Launch, ...]:
    """All launches in the order they run, for activations of `dtype` ("bf16" or "fp16").

    `tiles` are those of gate_up and of down; they share the routing, so they have one BLOCK_M.
    """
    gate_up, down = tiles
    return (
        *routing(shape.experts, gate_up.block_m),
        *([pointwise.weigh_input(dtype)] if weight_on_input else []),
        _gemm("gate_up", gpu, variant, dtype, gate_up, shape.hidden, weighted=False),
        pointwise.activation(dtype, activation),
        _gemm("down", gpu, variant, dtype, down, shape.intermediate, weighted=not weight_on_input),
        pointwise.sum_routes(dtype),
    )


@cache
def routing(experts: int, block_m: int) -> tuple[Launch, ...]:
    padded_experts = max(512, 1 << (experts - 1).bit_length())  # one binary for every layer of up to 512 experts
    return (
        declare(
            "count_routes",
            "routing.count_routes",
            "topk_ids: *i32, counts: *i32, routes: i32, experts: i32",
            "",
            {"CHUNK": ROUTE_CHUNK, "BLOCK_E": EXPERT_BLOCK},
        ),
        declare(
            "scan_counts",
            "routing.scan_counts",
            "counts: *i32, totals: *i32, chunks: i32, experts: i32",
            "",
            {"BLOCK_C": SCAN_CHUNKS, "BLOCK_E": SCAN_EXPERTS},
        ),
        declare(
            "list_blocks",
            "routing.list_blocks",
            "totals: *i32, first_slot: *i32, block_expert: *i32, block_routes: *i32, routes: i32, experts: i32",
            "",
            {"BLOCK_M": block_m, "EXPERTS": padded_experts},
        ),
        declare(
            "place_routes",
            "routing.place_routes",
            "topk_ids: *i32, counts: *i32, first_slot: *i32, block_routes: *i32, routes: i32, experts: i32",
            "",
            {"CHUNK": ROUTE_CHUNK},
        ),
    )


@cache
def _gemm(stage: str, gpu: Gpu, variant: Variant, dtype: str, tile: Tile, k: int, weighted: bool) -> Launch:
    facts, variant = architecture(gpu), variant.for_gemm(k, tile.block_kb)
    scale = "*fp8e4nv" if facts.native_e4m3 and not variant.emulated else "*u8"
    table = "table: *fp32, " if variant.form == "table" else ""
    sizes = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_KB": tile.block_kb}
    return declare(
        stage,
        FORMS[variant.form],
        f"x: *{dtype}, packed: *u8, scale: {scale}, {table}global_scale: *fp32, topk_weights: *fp32, "
        f"block_routes: *i32, block_expert: *i32, out: *{dtype}, N: i32, k_units: i32, routes: i32, "
        "rows_per_input: i32",
        "N",
        {**sizes, "K_UNIT": _k_unit(variant, k), "WEIGHTED": weighted, **_own_constexprs(variant, tile, k)},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        instruction=matrix_instruction(tile, facts, variant),
    )


def _k_unit(variant: Variant, k: int) -> int:
    """What K is declared a multiple of. Few values, as each is another binary."""
    if variant.scale_words:
        return WORD_K
    return 16 if k % 32 else 32


def _own_constexprs(variant: Variant, tile: Tile, k: int) -> dict:
    """The constexprs that one form alone has."""
    return {
        "byte": {"SCALE_WORDS": variant.scale_words},
        "pair": {"EVEN_K": k // 2 % tile.block_kb == 0},
        "table": {},
    }[variant.form]
