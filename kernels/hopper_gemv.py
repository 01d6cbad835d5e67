"""The launches of a W4A16 decode layer whose GEMVs are written for sm_90, on tensor cores, in Gluon. Pure.

They are decode.py's launches, but for the GEMVs that gain by it: those over a long K. A GEMV is decided by its own K
and N alone, so that the two of a layer may be of different kinds.
"""

from dataclasses import replace
from functools import cache

from ..contract.gpus import Gpu
from ..contract.shapes import LayerShape
from . import decode, hopper
from .launch import Launch

NAME = "decode_w4a16_hopper"
GEMV = "hopper_gemv.w4a16_hopper_gemv"

# Four warps share the K of a step, 128 each, so that few rows make a program: of a single token's GEMV all programs
# run at once, and more of them, or more registers or stages for each, were slower on an H200.
NUM_WARPS, K_UNIT = 4, 4 * 128
BLOCK_N, STAGES = 32, 2
LEAST_K = 1024  # below, decode.py's GEMV is as fast or faster there


def takes(k: int, n: int) -> bool:
    """Whether a GEMV of `n` rows over `k` is one of these: steps and blocks are whole."""
    return k >= LEAST_K and k % K_UNIT == 0 and n % BLOCK_N == 0


def stages(shape: LayerShape) -> tuple[str, ...]:
    """Those of gate_up and down that are of these."""
    sizes = {"gate_up": (shape.hidden, 2 * shape.intermediate), "down": (shape.intermediate, shape.hidden)}
    return tuple(stage for stage, (k, n) in sizes.items() if takes(k, n))


def lacks(gpu: Gpu, shape: LayerShape, triton: str) -> str:
    """Why none of these is to be had, as a part of the reason that a plan gives; empty where one is."""
    if card := hopper.card_lacks(gpu, triton):
        return card
    if not stages(shape):
        return f"no GEMV has a K of whole {K_UNIT}s from {LEAST_K} on, and an N of whole {BLOCK_N}s"
    return ""


def launches(gpu: Gpu, shape: LayerShape, dtype: str, activation: str, weight_on_input: bool) -> tuple[Launch, ...]:
    """All launches in the order they run, for activations of `dtype` ("bf16" or "fp16")."""
    plain, ours = decode.launches(gpu, shape, dtype, activation, weight_on_input), stages(shape)
    return tuple(_gemv(launch) if launch.stage in ours else launch for launch in plain)


@cache
def _gemv(plain: Launch) -> Launch:
    """What is started in place of `plain`, one of decode.py's GEMVs, with the same arguments."""
    constants = {"BLOCK_N": BLOCK_N, "STAGES": STAGES, "K_UNIT": K_UNIT, "WEIGHTED": plain.constexpr("WEIGHTED")}
    options = {"constexprs": tuple(constants.items()), "num_warps": NUM_WARPS, "instruction": "mma.sync"}
    return replace(plain, kernel=GEMV, **options)
