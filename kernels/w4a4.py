"""The launches of a W4A4 prefill layer: routing, the quantizer, gate_up with its activation, down, the sum. Pure."""

from dataclasses import dataclass, replace
from functools import cache

from ..contract.gpus import Gpu, architecture
from ..contract.shapes import LayerShape
from . import pointwise, prefill
from .launch import Launch, declare
from .tiles import Tile, matrix_instruction
from .tuning import RAGGED_BLOCK_KB


@dataclass(frozen=True)
class Form:
    """`atomic`: down adds up a token's routes by atomics, in any order, each sum rounded to the activations' dtype.

    `native`: the GPU's own FP4 instruction multiplies, instead of a 16-bit one on decoded operands. `specialized`: in
    both GEMMs some warps load, some multiply and some store. No hardware here has seen the last two.
    """

    atomic: bool = False
    native: bool = False
    specialized: bool = False


DEFAULT, ATOMIC = "prefill_w4a4", "prefill_w4a4_atomic"
NATIVE, SPECIALIZED = "prefill_w4a4_native", "prefill_w4a4_specialized"
FORMS: dict[str, Form] = {
    DEFAULT: Form(),
    ATOMIC: Form(atomic=True),
    NATIVE: Form(native=True),
    SPECIALIZED: Form(native=True, specialized=True),
}

# The Triton releases that compile tl.dot_scaled on e2m1 with e4m3 scales to the FP4 instruction, per capability: every
# native launch was compiled with each of them. The others stop with an error, because they have no such instruction for
# the architecture and cannot take the dot apart (triton-lang/triton#7549). None of this was seen on hardware.
NATIVE_TRITONS: dict[tuple[int, int], tuple[str, ...]] = {
    (10, 0): ("3.6.0", "3.7.1", "3.8.0", "3.9.0"),
    (10, 3): ("3.6.0", "3.7.1", "3.8.0", "3.9.0"),
    (11, 0): ("3.7.1", "3.8.0", "3.9.0"),
    (12, 0): ("3.6.0", "3.7.1", "3.8.0", "3.9.0"),
    (12, 1): ("3.8.0", "3.9.0"),
}

# Where "auto" takes it on FP4 hardware, in tokens per expert. FreeToken's W4A4 pull request, on sm_120: "prefill runs
# W4A4 from 4 tokens per expert and main's W4A16 below". That the others do as sm_120 is by reasoning.
AUTO_FROM = 4
AUTO_SOURCE = "FreeToken's W4A4 pull request, from 4 tokens per expert on sm_120; its tiles are W4A16's, not measured"

# Where specialized GEMMs compile: earlier releases lack parts of Gluon. Their K is a multiple of SPECIALIZED_K.
SPECIALIZED_TRITONS: dict[tuple[int, int], tuple[str, ...]] = {(12, 0): ("3.8.0", "3.9.0"), (12, 1): ("3.8.0", "3.9.0")}
SPECIALIZED_K = 64
SPECIALIZED_GATE_UP = "w4a4_gluon.w4a4_gate_up_specialized"
SPECIALIZED_DOWN = "w4a4_gluon.w4a4_down_specialized"

# (at least so many tokens per expert, BLOCK_M): those of W4A16, but for its block of 128. Not measured.
BLOCK_M_STEPS: tuple[tuple[int, int], ...] = ((24, 64), (12, 32), (0, 16))
GATE_UP_WARPS = 8  # for twice as many sums as down has; with 4, sm_80 spills

# Below this intermediate size down is persistent, as in FreeToken's W4A4 kernels for sm_120: so few steps of K hardly
# pay for starting a program. How many an SM gets is by reasoning: as many as its registers hold, of 128 a thread.
PERSISTENT_BELOW, PROGRAMS_PER_SM = 1024, 4
SPECIALIZED_WARPS = 4  # that multiply; as many load and as many store
SPECIALIZED_PER_SM = 1  # of twelve warps, and for most of the shared memory

FP4_KIND = "kind::mxf4nvf4"  # in the PTX ISA's names of mma and tcgen05.mma

# Weight rows and bytes of K a step of a native dot. On sm_100 and 103, Triton silently decodes one with 64 rows.
NATIVE_ROWS, NATIVE_KB, NATIVE_RAGGED_KB = 128, 64, 32


def is_native(gpu: Gpu, triton: str) -> bool:
    """Whether that `triton` release makes the FP4 instruction of native forms on `gpu`."""
    return gpu.backend == "cuda" and triton in NATIVE_TRITONS.get(gpu.capability, ())


def possible(form: Form, gpu: Gpu, shape: LayerShape, triton: str) -> tuple[Form, str]:
    """What `form` is on `gpu`, and what it lacks there: empty, or a part of the reason that a plan gives."""
    if not form.native:
        return form, ""
    if not is_native(gpu, triton):
        return replace(form, native=False, specialized=False), ", decoded (no FP4 instruction here)"
    if not form.specialized:
        return form, ""
    if triton not in SPECIALIZED_TRITONS.get(gpu.capability, ()):
        return replace(form, specialized=False), ", not specialized (it needs sm_120 or 121 and Triton 3.8.0 or later)"
    ragged = {stage: k for stage, k in _ks(shape).items() if not _is_specialized(form, k)}
    parts = [f", not specialized in {stage} (K {k} is no multiple of {SPECIALIZED_K})" for stage, k in ragged.items()]
    return form, "".join(parts)


def _ks(shape: LayerShape) -> dict[str, int]:
    return {"gate_up": shape.hidden, "down": shape.intermediate}


def _is_specialized(form: Form, k: int) -> bool:
    """Whether a GEMM over `k` is, in a `form` that is possible."""
    return form.specialized and k % SPECIALIZED_K == 0


def tiles(gpu: Gpu, shape: LayerShape, form: Form, tokens_per_expert: float, triton: str) -> tuple[Tile, Tile]:
    """The tiles of gate_up and down. BLOCK_N counts columns of gate_up's output, of which each has two weight rows."""
    block_m = next(block_m for least, block_m in BLOCK_M_STEPS if tokens_per_expert >= least)
    even, ragged = (NATIVE_KB, NATIVE_RAGGED_KB) if form.native else (Tile.block_kb, RAGGED_BLOCK_KB)
    gate_up_kb, down_kb = (ragged if k % 32 else even for k in (shape.hidden, shape.intermediate))
    if block_m == BLOCK_M_STEPS[0][1] and not form.native:
        gate_up_kb = RAGGED_BLOCK_KB  # or sm_89 spills a register or two
    if form.atomic and not form.native:
        down_kb = RAGGED_BLOCK_KB  # or sm_80 does
    stages = 2 if form.native and _spills_in_three_stages(gpu, block_m, triton) else Tile.num_stages
    gate_up = Tile(block_m, block_kb=gate_up_kb, num_warps=GATE_UP_WARPS, num_stages=stages)
    return gate_up, Tile(block_m, NATIVE_ROWS if form.native else Tile.block_n, down_kb)


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
    of_gate_up = _specialized_gate_up if _is_specialized(form, shape.hidden) else _gate_up
    of_down = _specialized_down if _is_specialized(form, shape.intermediate) else _down
    return (
        *prefill.routing(shape.experts, gate_up.block_m),
        *([pointwise.weigh_input(dtype)] if weight_on_input else []),
        pointwise.quantize(dtype),
        of_gate_up(gpu, form, gate_up, shape.hidden, activation),
        of_down(gpu, form, dtype, down, shape.intermediate, weighted=not weight_on_input),
        *([] if form.atomic else [pointwise.sum_routes(dtype)]),
    )


@cache
def _gate_up(gpu: Gpu, form: Form, tile: Tile, k: int, activation: str) -> Launch:
    scale = _scale(gpu)
    return declare(
        "gate_up",
        "w4a4.w4a4_gate_up",
        f"x: *u8, x_scale: {scale}, packed: *u8, scale: {scale}, alpha: *fp32, stored: *fp32, block_routes: *i32, "
        "block_expert: *i32, out: *u8, out_scale: *u8, N: i32, k_units: i32, routes: i32, rows_per_input: i32, "
        "activation_alpha: fp32, activation_limit: fp32",
        "N",
        {**_sizes(tile, k), "NATIVE": form.native, "ACTIVATION": activation},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        instruction=_instruction(gpu, form, tile),
    )


@cache
def _down(gpu: Gpu, form: Form, dtype: str, tile: Tile, k: int, weighted: bool) -> Launch:
    scale = _scale(gpu)
    flags = {"NATIVE": form.native, "WEIGHTED": weighted, "ATOMIC": form.atomic}
    return declare(
        "down",
        "w4a4.w4a4_down",
        f"x: *u8, x_scale: {scale}, packed: *u8, scale: {scale}, alpha: *fp32, topk_weights: *fp32, "
        f"block_routes: *i32, block_expert: *i32, out: *{dtype}, N: i32, blocks: i32, k_units: i32, routes: i32, "
        "rows_per_output: i32",
        "N",
        {**_sizes(tile, k), **flags, "PERSISTENT": k < PERSISTENT_BELOW and not _spills_persistent(gpu, tile)},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        instruction=_instruction(gpu, form, tile),
    )


@cache
def _specialized_gate_up(gpu: Gpu, form: Form, tile: Tile, k: int, activation: str) -> Launch:
    """As _gate_up; every K is a multiple of SPECIALIZED_K, so that one binary serves them all."""
    return declare(
        "gate_up",
        SPECIALIZED_GATE_UP,
        "x: *u8, x_scale: *fp8e4nv, packed: *u8, scale: *fp8e4nv, alpha: *fp32, stored: *fp32, block_routes: *i32, "
        "block_expert: *i32, out: *u8, out_scale: *u8, N: i32, blocks: i32, k_units: i32, routes: i32, "
        "rows_per_input: i32, activation_alpha: fp32, activation_limit: fp32",
        "N",
        {**_sizes(tile, k), "K_UNIT": SPECIALIZED_K, "ACTIVATION": activation},
        num_warps=SPECIALIZED_WARPS,
        instruction=_instruction(gpu, form, tile),
    )


@cache
def _specialized_down(gpu: Gpu, form: Form, dtype: str, tile: Tile, k: int, weighted: bool) -> Launch:
    """As _down; every K is a multiple of SPECIALIZED_K, so that one binary serves them all."""
    return declare(
        "down",
        SPECIALIZED_DOWN,
        "x: *u8, x_scale: *fp8e4nv, packed: *u8, scale: *fp8e4nv, alpha: *fp32, topk_weights: *fp32, "
        f"block_routes: *i32, block_expert: *i32, out: *{dtype}, N: i32, blocks: i32, k_units: i32, routes: i32",
        "N",
        {**_sizes(tile, k), "K_UNIT": SPECIALIZED_K, "WEIGHTED": weighted},
        num_warps=SPECIALIZED_WARPS,
        instruction=_instruction(gpu, form, tile),
    )


def _spills_in_three_stages(gpu: Gpu, block_m: int, triton: str) -> bool:
    """Whether a native gate_up takes too many registers: with Triton 3.6.0 it spills 16 bytes on sm_120."""
    return triton == "3.6.0" and block_m >= 64 and architecture(gpu).matrix_instruction == "mma.sync"


def _spills_persistent(gpu: Gpu, tile: Tile) -> bool:
    """Whether the loop over tiles takes too many registers: with ptxas 13.3 it spills 8 bytes, on sm_110 alone."""
    return gpu.capability == (11, 0) and tile.block_m >= 64


def _instruction(gpu: Gpu, form: Form, tile: Tile) -> str:
    """A native dot is asked for its kind as well, or a silent fall back to 16 bits would look like success."""
    return (
        f"{architecture(gpu).matrix_instruction} {FP4_KIND}"
        if form.native
        else matrix_instruction(tile, architecture(gpu))
    )


def _sizes(tile: Tile, k: int) -> dict[str, int]:
    sizes = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_KB": tile.block_kb}
    return {**sizes, "K_UNIT": 16 if k % 32 else 32}


def _scale(gpu: Gpu) -> str:
    return "*fp8e4nv" if architecture(gpu).native_e4m3 else "*u8"
