"""The launches around the GEMMs, the same in every form of the layer: weights on the input, activation, sum. Pure."""

from functools import cache

from .launch import Launch, declare

COLUMN_BLOCK = 512


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
