"""The launches around the GEMMs, the same in every form of the layer: weights on the input, quantizer, activation, sum.

Pure.
"""

from functools import cache

from .launch import Launch, declare

COLUMN_BLOCK = 512
QUANTIZED_ROWS, QUANTIZED_COLUMNS = 16, 256  # two blocks of 16 for each thread of 4 warps


@cache
def weigh_input(dtype: str) -> Launch:
    arguments = f"x: *{dtype}, topk_weights: *fp32, out: *{dtype}, columns: i32, top_k: i32"
    return declare("weigh_input", "pointwise.weigh_input", arguments, "columns", {"BLOCK": COLUMN_BLOCK})


@cache
def activation(dtype: str, name: str) -> Launch:
    return declare(
        "activation",
        "pointwise.gated_activation",
        f"gate_up: *{dtype}, topk_ids: *i32, out: *{dtype}, columns: i32, experts: i32, alpha: fp32, limit: fp32",
        "columns",
        {"ACTIVATION": name, "BLOCK": COLUMN_BLOCK},
    )


@cache
def sum_routes(dtype: str) -> Launch:
    arguments = f"route_out: *{dtype}, topk_ids: *i32, out: *{dtype}, columns: i32, top_k: i32, experts: i32"
    return declare("sum_routes", "pointwise.sum_routes", arguments, "columns", {"BLOCK": COLUMN_BLOCK})


@cache
def quantize(dtype: str, layout: str = "linear") -> Launch:
    """Activations of `dtype` to NVFP4; `layout` of the block scales: "linear" or "128x4"."""
    arguments = f"x: *{dtype}, stored: *fp32, packed: *u8, scale: *u8, rows: i32, columns: i32"
    sizes = {"BLOCK_M": QUANTIZED_ROWS, "BLOCK_K": QUANTIZED_COLUMNS, "SWIZZLED": layout == "128x4"}
    return declare("quantize", "quantize.quantize_rows", arguments, "columns", sizes)


@cache
def interleave_k(dtype: str) -> Launch:
    """Activations in the order of K that the GEMMs of hopper.py read."""
    arguments = f"x: *{dtype}, out: *{dtype}, columns: i32"
    return declare("interleave_k", "pointwise.interleave_k", arguments, "columns", {"BLOCK": COLUMN_BLOCK})
