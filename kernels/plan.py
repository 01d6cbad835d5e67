"""Which kernels run, with which tiles: a pure function of GPU, shape, tokens and options. All dispatch is here."""

from dataclasses import dataclass, fields, replace
from functools import lru_cache

from ..contract.gpu_names import has_known_name, speed_class
from ..contract.gpus import PORTABLE, Gpu, architecture, is_known
from ..contract.kernel import ACTIVATIONS, DTYPES
from ..contract.shapes import LayerShape
from . import decode, padding, prefill, w4a4
from .launch import Launch
from .tiles import Tile, least_tile, most_block_m, shared_memory
from .tuning import for_gemm, steps_of, tuning_of
from .variants import DEFAULT, VARIANTS, WORD_K, Variant

TRITONS = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")
KERNELS = ("auto", "prefill", *VARIANTS, "decode", decode.NAME, "w4a4", *w4a4.FORMS)


@dataclass(frozen=True)
class LayerPlan:
    """How a layer of `shape` runs on activations of `dtype`: the kernel's registry name, its launches, and why.

    `tokens` is how many it was chosen for; it runs on any number of them.
    """

    kernel: str
    shape: LayerShape
    tokens: int
    dtype: str
    launches: tuple[Launch, ...]
    reason: str

    def launch(self, stage: str) -> Launch | None:
        """The launch of `stage`, None where this plan has none."""
        return next((launch for launch in self.launches if launch.stage == stage), None)

    @property
    def padded_ratio(self) -> float:
        """Rows that the GEMMs multiply over rows that are routed, expected of random routing; 1 without blocks.

        See padding.py for the formula.
        """
        blocks = self.launch("list_blocks")
        return padding.expected_ratio(self.shape, self.tokens, blocks.constexpr("BLOCK_M")) if blocks else 1.0


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
    layer, options = (gpu, shape, tokens), (dtype, activation, weight_on_input)
    if kernel in ("decode", decode.NAME):
        if override is not None:
            raise ValueError(f"override is {override}, but should be None for {kernel}, which has no such tile")
        return _decode(*layer, options, f"as asked, {gpu.name}")
    if kernel in ("w4a4", *w4a4.FORMS):
        if not input_scales or override is not None:
            raise ValueError(_why_no_w4a4(kernel, input_scales, override))
        return _w4a4(*layer, options, triton, kernel)
    tokens_per_expert = tokens * shape.top_k / shape.experts
    if kernel == "auto" and override is None and 0 < tokens_per_expert <= tuning_of(gpu).decode_up_to:
        return _decode(*layer, options, f"{tokens_per_expert:.3g} tokens per expert, {_card(gpu)}")
    return _prefill(*layer, options, DEFAULT if kernel in ("auto", "prefill") else kernel, override)


Options = tuple[str, str, bool]  # dtype, activation, weight_on_input


def _decode(gpu: Gpu, shape: LayerShape, tokens: int, options: Options, why: str) -> LayerPlan:
    launches = decode.launches(gpu, shape, *options) if tokens else ()
    return LayerPlan(decode.NAME, shape, tokens, options[0], launches, f"{why}: a GEMV for each route")


def _prefill(gpu: Gpu, shape: LayerShape, tokens: int, options: Options, name: str, override: Tile | None) -> LayerPlan:
    if tokens == 0:
        return LayerPlan(name, shape, tokens, options[0], (), "no tokens: nothing to launch")
    if override is None:
        tokens_per_expert = tokens * shape.top_k / shape.experts
        why = f"{tokens_per_expert:.3g} tokens per expert"
        choices = _choices(gpu, name, shape.hidden, shape.intermediate)
        variant, tiles = next(chosen for least, *chosen in choices if tokens_per_expert >= least)
    else:
        why, variant = "override", VARIANTS[name]
        tiles = (_checked(override, gpu, variant),) * 2
    launches = prefill.launches(gpu, shape, variant, tiles, *options)
    reason = f"{why}, {_card(gpu)}: block {tiles[0].block_m}{_without_words(shape, variant, tiles)}"
    return LayerPlan(name, shape, tokens, options[0], launches, reason)


@lru_cache(maxsize=256)
def _card(gpu: Gpu) -> str:
    """What of `gpu` chose its plans: its speed class and architecture."""
    if not is_known(gpu):
        return gpu.name if gpu == PORTABLE else f"{gpu.name} (unknown architecture, portable plan)"
    card = f"{speed_class(gpu).name} sm_{gpu.capability[0]}{gpu.capability[1]}"
    return card if has_known_name(gpu) else f'{card} ("{gpu.name}" is no known name)'


def _w4a4(gpu: Gpu, shape: LayerShape, tokens: int, options: Options, triton: str, kernel: str) -> LayerPlan:
    name = (w4a4.NATIVE if w4a4.is_native(gpu, triton) else w4a4.DEFAULT) if kernel == "w4a4" else kernel
    if tokens == 0:
        return LayerPlan(name, shape, tokens, options[0], (), "no tokens: nothing to launch")
    tokens_per_expert = tokens * shape.top_k / shape.experts
    form, without = w4a4.possible(w4a4.FORMS[name], gpu, shape, triton)
    tiles = w4a4.tiles(shape, form, tokens_per_expert)
    launches = w4a4.launches(gpu, shape, form, tiles, *options)
    reason = f"{tokens_per_expert:.3g} tokens per expert, {_card(gpu)}: block {tiles[0].block_m}{without}"
    return LayerPlan(name, shape, tokens, options[0], launches, reason)


def _why_no_w4a4(kernel: str, input_scales: bool, override: Tile | None) -> str:
    if not input_scales:
        return f"input_scales is {input_scales}, but should be True for {kernel}: it quantizes activations with them"
    return f"override is {override}, but should be None for {kernel}, which has tiles of its own"


def _without_words(shape: LayerShape, variant: Variant, tiles: tuple[Tile, Tile]) -> str:
    """Which GEMMs load single scales although the variant loads words, and why; empty where none do."""
    if not variant.scale_words:
        return ""
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


@lru_cache(maxsize=1024)
def _choices(gpu: Gpu, name: str, hidden: int, intermediate: int) -> tuple[tuple[int, Variant, tuple[Tile, Tile]], ...]:
    """(at least so many tokens per expert, how the kernel is written there, its tiles of gate_up and of down).

    The tiles differ where only one K is ragged or long. The default kernel alone is tuned: where its tuning says so, it
    loads scales as words, like the variant that is named for it.
    """
    variant = VARIANTS[name]
    words = tuning_of(gpu).scale_words if name == DEFAULT else None
    found = []
    for least, tile in steps_of(gpu, variant):
        here = replace(variant, scale_words=True) if words and tile.block_m == words.block_m else variant
        tiles = (for_gemm(tile, k, variant, words) for k in (hidden, intermediate))
        found.append((least, here, tuple(_fitted(tile, gpu, here) for tile in tiles)))
    return tuple(found)


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
