"""The launches of the W4A16 decode layer: two GEMVs over the routes as they come, the activation, the sum. Pure.

For few tokens, whose routes seldom share an expert: each weight is decoded once per route that uses it. Every route has
programs of its own, so there is nothing to sort, and no launch has anything to do with how many tokens there are.
"""

from functools import cache

from ..contract.gpus import Gpu, architecture
from ..contract.shapes import LayerShape
from . import pointwise
from .launch import Launch, declare

NAME = "decode_w4a16"

# (weight rows, words of 8 codes) a step, for 4 warps: always 2048 words, 16 a thread, in four loads of 16 bytes. With
# five such programs on each of its SMs, an H200 has 5 MB on the way, more than its bandwidth times its latency (3 MB).
# WIDE reads 512 bytes of a row at once and makes four times as many programs, which a single token needs.
WIDE, NARROW = (16, 128), (64, 32)
LEAST_USE = 0.8  # of the words of all steps; below it lanes would idle in WIDE


def gemv_constants(k: int) -> dict[str, int]:
    """How a GEMV over `k`, a multiple of 16, is cut. It depends on nothing else, lest a row's sums do."""
    words = k // 8
    steps = -(-words // WIDE[1])
    wide = k % 32 == 0 and words >= LEAST_USE * steps * WIDE[1]
    block_n, block_words = WIDE if wide else NARROW
    return {"BLOCK_N": block_n, "WORDS": block_words, "K_UNIT": 16 if k % 32 else 32}


def launches(gpu: Gpu, shape: LayerShape, dtype: str, activation: str, weight_on_input: bool) -> tuple[Launch, ...]:
    """All launches in the order they run, for activations of `dtype` ("bf16" or "fp16")."""
    return (
        *([pointwise.weigh_input(dtype)] if weight_on_input else []),
        _gemv("gate_up", gpu, dtype, shape.hidden, weighted=False),
        pointwise.activation(dtype, activation),
        _gemv("down", gpu, dtype, shape.intermediate, weighted=not weight_on_input),
        pointwise.sum_routes(dtype),
    )


@cache
def _gemv(stage: str, gpu: Gpu, dtype: str, k: int, weighted: bool) -> Launch:
    scale = "*fp8e4nv" if architecture(gpu).native_e4m3 else "*u8"
    return declare(
        stage,
        "gemv.w4a16_gemv",
        f"x: *{dtype}, packed: *i32, scale: {scale}, global_scale: *fp32, topk_weights: *fp32, topk_ids: *i32, "
        f"out: *{dtype}, N: i32, k_units: i32, experts: i32, rows_per_input: i32",
        "N",
        {**gemv_constants(k), "WEIGHTED": weighted},
    )
