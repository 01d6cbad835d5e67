"""Which kernels run, with which tiles: a pure function of GPU, shape, tokens and options. All dispatch is here."""

from dataclasses import dataclass, fields, replace
from functools import lru_cache

from ..contract.gpus import PORTABLE, Gpu, architecture, is_known
from ..contract.kernel import ACTIVATIONS, DTYPES
from ..contract.shapes import LayerShape
from . import decode, prefill, w4a4
from .launch import Launch
from .tuning import Tile, block_m_steps, least_tile, most_block_m, prefill_tile, shared_memory
from .variants import DEFAULT, VARIANTS, WORD_K, Variant

TRITONS = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")
KERNELS = ("auto", "prefill", *VARIANTS, "decode", decode.NAME, "w4a4", *w4a4.FORMS)


@dataclass(frozen=True)
class LayerPlan:
    """How a layer of `shape` runs on activations of `dtype`: the kernel's registry name, its launches, and why."""

    kernel: str
    shape: LayerShape
    dtype: str
    launches: tuple[Launch, ...]
    reason: str

    def launch(self, stage: str) -> Launch | None:
        """The launch of `stage`, None where this plan has none."""
        return next((launch for launch in self.launches if launch.stage == stage), None)


@lru_cache(maxsize=4096)
def plan_layer(
    gpu: Gpu,
    shape: LayerShape,
    tokens: int,
    *,
    triton: str = "3.8.0",
    dtype: str = "bf16",
    activation: str = "silu",
    weight_on_input: bool = False,
    input_scales: bool = False,
    kernel: str = "auto",
    override: Tile | None = None,
) -> LayerPlan:
    """The plan for `tokens` through a layer of `shape` on `gpu`, under that `triton` release.

    `dtype` is "bf16" or "fp16"; `input_scales` says whether the banks have them (W4A16 kernels ignore them); `override`
    replaces the tile. Zero tokens have no launches. Raises ValueError for an unknown option, for a tile that cannot be
    and for one that does not fit into the GPU's shared memory.
    """
    _check_options(tokens, triton=triton, dtype=dtype, activation=activation, kernel=kernel)
    if kernel in ("decode", decode.NAME):  # "auto" will choose it below some number of routes, once that is measured
        if override is not None:
            raise ValueError(f"override is {override}, but should be None for {kernel}, which has no such tile")
        launches = decode.launches(gpu, shape, dtype, activation, weight_on_input) if tokens else ()
        return LayerPlan(decode.NAME, shape, dtype, launches, f"as asked, {gpu.name}: a GEMV for each route")
    if kernel in ("w4a4", *w4a4.FORMS):
        return _w4a4(gpu, shape, tokens, triton, dtype, activation, weight_on_input, input_scales, kernel, override)
    name = DEFAULT if kernel in ("auto", "prefill") else kernel
    if tokens == 0:
        return LayerPlan(name, shape, dtype, (), "no tokens: nothing to launch")
    variant = VARIANTS[name]
    if override is None:
        tokens_per_expert = tokens * shape.top_k / shape.experts
        tiles, why = _tiles(gpu, shape, variant, tokens_per_expert), f"{tokens_per_expert:.3g} tokens per expert"
    else:
        tiles, why = (_checked(override, gpu, variant),) * 2, "override"
    launches = prefill.launches(gpu, shape, variant, tiles, dtype, activation, weight_on_input)
    card = gpu.name if is_known(gpu) or gpu == PORTABLE else f"{gpu.name} (unknown architecture, portable plan)"
    reason = f"{why}, {card}: block {tiles[0].block_m}{_without_words(shape, variant, tiles)}"
    return LayerPlan(name, shape, dtype, launches, reason)


def _w4a4(
    gpu: Gpu,
    shape: LayerShape,
    tokens: int,
    triton: str,
    dtype: str,
    activation: str,
    weight_on_input: bool,
    input_scales: bool,
    kernel: str,
    override: Tile | None,
) -> LayerPlan:
    if not input_scales:
        raise ValueError(f"input_scales is False, but should be True for {kernel}: it quantizes activations with them")
    if override is not None:
        raise ValueError(f"override is {override}, but should be None for {kernel}, which has tiles of its own")
    is_native = w4a4.is_native(gpu, triton)
    name = (w4a4.NATIVE if is_native else w4a4.DEFAULT) if kernel == "w4a4" else kernel
    if tokens == 0:
        return LayerPlan(name, shape, dtype, (), "no tokens: nothing to launch")
    tokens_per_expert = tokens * shape.top_k / shape.experts
    form = w4a4.FORMS[name]
    without = ", decoded (no FP4 instruction here)" if form.native and not is_native else ""
    form = replace(form, native=form.native and is_native)
    tiles = w4a4.tiles(shape, form, tokens_per_expert)
    launches = w4a4.launches(gpu, shape, form, tiles, dtype, activation, weight_on_input)
    reason = f"{tokens_per_expert:.3g} tokens per expert, {gpu.name}: block {tiles[0].block_m}{without}"
    return LayerPlan(name, shape, dtype, launches, reason)


def _without_words(shape: LayerShape, variant: Variant, tiles: tuple[Tile, Tile]) -> str:
    """Which GEMMs load single scales although the variant loads words, and why; empty where none do."""
    gemms = zip(("gate_up", "down"), (shape.hidden, shape.intermediate), tiles, strict=True)
    return "".join(
        f", single scales in {stage} (K {k} or its step {2 * tile.block_kb} is no multiple of {WORD_K})"
        for stage, k, tile in gemms
        if variant.for_gemm(k, tile.block_kb) != variant
    )


def _check_options(tokens: int, **chosen: str) -> None:
    allowed = {"triton": TRITONS, "dtype": DTYPES, "activation": ACTIVATIONS, "kernel": KERNELS}
    for name, value in chosen.items():
        if value not in allowed[name]:
            raise ValueError(f"{name} is {value!r}, but should be one of {', '.join(allowed[name])}")
    if tokens < 0:
        raise ValueError(f"tokens is {tokens}, but should be at least 0")


def _tiles(gpu: Gpu, shape: LayerShape, variant: Variant, tokens_per_expert: float) -> tuple[Tile, Tile]:
    """The tiles of gate_up and down, which differ where only one of their K is ragged."""
    steps = block_m_steps(gpu, variant)
    tiles = (prefill_tile(tokens_per_expert, k, steps, variant) for k in (shape.hidden, shape.intermediate))
    return tuple(_fitted(tile, gpu, variant) for tile in tiles)


def _fitted(tile: Tile, gpu: Gpu, variant: Variant) -> Tile:
    """`tile` with as many of its stages as the GPU's shared memory holds."""
    while tile.num_stages > 1 and shared_memory(tile, architecture(gpu), variant) > architecture(gpu).shared_memory:
        tile = replace(tile, num_stages=tile.num_stages - 1)
    return tile


def _checked(tile: Tile, gpu: Gpu, variant: Variant) -> Tile:
    least, most = least_tile(variant), most_block_m(gpu, variant)
    for field in fields(Tile):
        value, lowest = getattr(tile, field.name), getattr(least, field.name)
        if value < lowest or (value & (value - 1) and field.name != "num_stages"):
            kind = "a number" if field.name == "num_stages" else "a power of two"
            raise ValueError(f"override's {field.name} is {value}, but should be {kind} of at least {lowest}")
    if most and tile.block_m > most:
        raise ValueError(
            f"override's block_m is {tile.block_m}, but should be at most {most} for {variant.form} on {gpu.name}: "
            "two dots into one sum go wrong on tcgen05 (triton-lang/triton#10821)"
        )
    needed, limit = shared_memory(tile, architecture(gpu), variant), architecture(gpu).shared_memory
    if needed > limit:
        raise ValueError(f"override needs {needed:,} bytes of shared memory, but {gpu.name} has {limit:,} a block")
    return tile
