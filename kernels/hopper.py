"""The launches of a W4A16 prefill layer whose GEMMs are written for sm_90, in Gluon. Pure.

gate_up has the activation in its epilogue. Both GEMMs read activations whose K is interleaved: gate_up's are so by a
launch before it, and down's as gate_up stores them.
"""

from functools import cache

from ..contract.gpus import Gpu
from ..contract.shapes import LayerShape
from . import pointwise, prefill
from .launch import Launch, declare
from .tiles import Tile

NAME, PREPARED = "prefill_w4a16_hopper", "prefill_w4a16_prepared"  # on banks as they are, and on hopper_banks.py's
NAMES = (NAME, PREPARED)
CAPABILITY = (9, 0)
TRITONS = ("3.8.0", "3.9.0")  # earlier releases lack parts of Gluon
GATE_UP, DOWN = "w4a16_hopper.w4a16_hopper_gate_up", "w4a16_hopper.w4a16_hopper_down"

K_UNIT = 64
ROWS = 128  # weight rows of a tile
LARGE = Tile(256, block_n=ROWS, num_warps=8)
SMALL = Tile(64, block_n=ROWS, num_warps=8)
STAGES = {LARGE: (6, 5, 4), SMALL: (8, 6, 5, 4)}  # the first that `stages_of` can take
PROGRAMS = {LARGE: 1, SMALL: 2}  # that an SM has at once; SMALL by itself takes half as long again

# Tokens per expert, from where on "auto" takes it: the fewest that were measured, 1.5 to 1.6 times as fast as prefill
# on Qwen3.6 (2 of them) and GLM-4.7 (3.2), on one H200.
AUTO_FROM = 2

# Below so many tokens per expert SMALL is faster, by how gate_up reads its bank, as it is and prepared: of Qwen3.6,
# Gemma-4, GLM-4.7 and MiniMax-M2.5 with 32 to 256 of them, on one H200.
SMALL_BELOW = {NAME: 80, PREPARED: 144}
SOURCE = "ours, one H200"

# What hidden and intermediate are multiples of, so that tiles are whole: of down they have 128 columns, of gate_up 64.
# And what both are at least, so that the ring is full once before the loop.
UNITS, LEAST_K = (ROWS, ROWS // 2), 4 * K_UNIT


def k_of_position(position: int) -> int:
    """Which k stands at a position of interleaved activations.

    Of each 64 it is 16 t + 8 h + 4 j + s at 16 s + 8 h + 2 t + j. So a thread of wgmma, t of four, finds 16 consecutive
    k of a row of weights in the four instructions s of a step.
    """
    s, h, t, j = position // 16 % 4, position // 8 % 2, position // 2 % 4, position % 2
    return position // 64 * 64 + 16 * t + 8 * h + 4 * j + s


# Which bits of a word's halves hold code s and code s + 4, from the mantissa's on to the sign: as the checkpoint has
# them, and as prepared banks do, where a shift brings all of a code to its place in bf16, but for the last code's.
CODE_BITS = tuple(tuple(range(4 * s, 4 * s + 4)) for s in range(4))
PREPARED_BITS = ((6, 7, 8, 15), (3, 4, 5, 12), (0, 1, 2, 9), (13, 10, 11, 14))


def card_lacks(gpu: Gpu, triton: str) -> str:
    """Why no launch for sm_90 is to be had, whatever its sizes; empty where they are."""
    if gpu.capability != CAPABILITY:
        return "it needs sm_90"
    return "" if triton in TRITONS else f"it needs Triton {' or '.join(TRITONS)}"


def lacks(gpu: Gpu, shape: LayerShape, triton: str) -> str:
    """Why these launches are not to be had, as a part of the reason that a plan gives; empty where they are."""
    if card := card_lacks(gpu, triton):
        return card
    sizes = {"hidden": shape.hidden, "intermediate": shape.intermediate}
    for (name, size), unit in zip(sizes.items(), UNITS, strict=True):
        if size % unit or size < LEAST_K:
            return f"{name} {size} is no multiple of {unit}, or less than {LEAST_K}"
        if not stages_of(size, LARGE):  # what it can, SMALL can
            return f"{name} {size} leaves too many steps behind the loop"
    return ""


def stages_of(k: int, tile: Tile) -> int | None:
    """How many steps of a GEMM over `k` are under way at once; None where no number will do.

    The loop takes so many steps at once. What it leaves must be copied by then, because ptxas takes the wgmma of a
    rest that copies apart. And two less are copied before it.
    """
    steps = k // K_UNIT
    return next((stages for stages in STAGES[tile] if steps % stages <= stages - 2 <= steps), None)


def products_in_code(launch: Launch) -> int:
    """How many products a binary has in its code: those of the loop and REST, for each part of each width of a tile."""
    steps = launch.constexpr("STAGES") + launch.constexpr("REST")
    return sum(len(parts(width)) for width in widths(launch.constexpr("BLOCK_M"))) * steps


def shared_memory(launch: Launch) -> int:
    """Bytes: the ring's. The result passes through stages of it when nothing reads or fills them any more."""
    stage = 2 * K_UNIT * launch.constexpr("BLOCK_M") + (K_UNIT // 2 + K_UNIT // 16) * ROWS
    return launch.constexpr("STAGES") * stage


def most_registers(launch: Launch) -> int:
    """Of a thread, so that as many programs as PROGRAMS says have those of an SM."""
    return min(65_536 // (32 * launch.num_warps * PROGRAMS[tile_of(launch.constexpr("BLOCK_M"))]), 255)


def widths(block_m: int) -> tuple[int, ...]:
    """How many routes a tile of a block may be for: what is padded stays little, and each is code of its own."""
    return (64, 128, 192, 256) if block_m == 256 else (32, 64)


def parts(width: int) -> tuple[int, ...]:
    """A width in powers of two, which the sizes of tensors are, the largest first."""
    largest = 1 << width.bit_length() - 1
    return (largest, width - largest) if width > largest else (width,)


def tile(name: str, tokens_per_expert: float) -> Tile:
    """The tile of a kernel of NAMES."""
    return LARGE if tokens_per_expert >= SMALL_BELOW[name] else SMALL


def tile_of(block_m: int) -> Tile:
    """LARGE or SMALL."""
    return {tile.block_m: tile for tile in STAGES}[block_m]


def wants_prepared(launch: Launch | None) -> bool:
    """Whether `launch` reads prepared banks, and no others."""
    return launch is not None and dict(launch.constexprs).get("PREPARED", False)


def launches(
    name: str, shape: LayerShape, tile: Tile, dtype: str, activation: str, weight_on_input: bool
) -> tuple[Launch, ...]:
    """All launches of a kernel of NAMES in the order they run, for activations of `dtype` ("bf16" or "fp16")."""
    prepared = name == PREPARED
    return (
        *prefill.routing(shape.experts, tile.block_m),
        *([pointwise.weigh_input(dtype)] if weight_on_input else []),
        pointwise.interleave_k(dtype),
        _gate_up(tile, shape.hidden, dtype, activation, prepared),
        _down(tile, shape.intermediate, dtype, not weight_on_input, prepared),
        pointwise.sum_routes(dtype),
    )


@cache
def _gate_up(tile: Tile, k: int, dtype: str, activation: str, prepared: bool) -> Launch:
    return declare(
        "gate_up",
        GATE_UP,
        f"x: *{dtype}, packed: *u8, scale: *fp8e4nv, global_scale: *fp32, block_routes: *i32, block_expert: *i32, "
        f"out: *{dtype}, N: i32, k_units: i32, routes: i32, rows_per_input: i32, activation_alpha: fp32, "
        "activation_limit: fp32",
        "N",
        {**_sizes(tile, k), "PREPARED": prepared, "ACTIVATION": activation},
        num_warps=tile.num_warps,
        instruction="wgmma",
    )


@cache
def _down(tile: Tile, k: int, dtype: str, weighted: bool, prepared: bool) -> Launch:
    return declare(
        "down",
        DOWN,
        f"x: *{dtype}, packed: *u8, scale: *fp8e4nv, global_scale: *fp32, topk_weights: *fp32, block_routes: *i32, "
        f"block_expert: *i32, out: *{dtype}, N: i32, k_units: i32, routes: i32",
        "N",
        {**_sizes(tile, k), "PREPARED": prepared, "WEIGHTED": weighted},
        num_warps=tile.num_warps,
        instruction="wgmma",
    )


def _sizes(tile: Tile, k: int) -> dict[str, int]:
    """REST: the steps of K that the loop leaves, which takes STAGES at once."""
    stages = stages_of(k, tile)
    sizes = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "STAGES": stages}
    return {**sizes, "REST": k // K_UNIT % stages, "K_UNIT": K_UNIT}
