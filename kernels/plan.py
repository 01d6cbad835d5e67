"""Which kernels run, with which tiles: a pure function of GPU, shape, tokens and options. All dispatch is here."""

from dataclasses import dataclass, fields, replace
from functools import lru_cache

from ..contract.checks import choice, flag, whole
from ..contract.gpu_names import DATA_CENTER, has_known_name, speed_class
from ..contract.gpus import PORTABLE, Gpu, architecture, is_known
from ..contract.kernel import ACTIVATIONS, DTYPES
from ..contract.shapes import LayerShape
from . import decode, hopper, hopper_gemv, padding, prefill, w4a4
from .launch import Launch
from .releases import check_target
from .remembered import remembered
from .tiles import MOST_WARPS, Tile, least_tile, most_block_m, shared_memory
from .tuning import for_gemm, steps_of, tuning_of
from .variants import DEFAULT, VARIANTS, WORD_K, Variant

# What the routing has room for: its gated binary has 512 experts, and it counts the routes of each of them in chunks of
# 128, in a table that int32 indexes.
MOST_EXPERTS, MOST_ROUTES = 512, 2**29

DECODE = {"decode": decode.NAME, decode.NAME: decode.NAME, hopper_gemv.NAME: hopper_gemv.NAME}
KERNELS = ("auto", "prefill", *VARIANTS, *hopper.NAMES, *DECODE, "w4a4", *w4a4.FORMS)


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
        if not blocks:
            return 1.0
        block_m = blocks.constexpr("BLOCK_M")
        widths = hopper.widths(block_m) if self.launch("interleave_k") else (block_m,)
        return padding.expected_ratio(self.shape, self.tokens, *widths)


@remembered
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
    replaces the tile. Zero tokens have no launches. "auto" takes the decode kernel for few tokens, W4A4 for many where
    the banks have input scales and both GPU and `triton` have a native FP4 dot, and W4A16 for the rest; of decode and
    W4A16 the kernel for sm_90 where it can be, else the one that "decode" or "prefill" names.

    Raises TypeError for an argument of another type, ValueError for an unknown option, for more experts or routes than
    the routing has room for, for a GPU that `triton` cannot compile for, for a tile that cannot be and for one that
    does not fit into the GPU's shared memory; both name the argument.
    """
    check_target(gpu, triton)
    _check_sizes(shape, tokens)
    _check_options(dtype, activation, weight_on_input, input_scales, kernel, override)
    layer, options = (gpu, shape, tokens), (dtype, activation, weight_on_input)
    if kernel in DECODE:
        if override is not None:
            raise ValueError(f"override is {override}, but should be None for {kernel}, which has no such tile")
        return _decode(*layer, options, triton, DECODE[kernel], f"as asked, {gpu.name}")
    if kernel in ("w4a4", *w4a4.FORMS):
        if not input_scales or override is not None:
            raise ValueError(_why_no_w4a4(kernel, input_scales, override))
        return _w4a4(*layer, options, triton, kernel)
    if kernel in hopper.NAMES:
        if override is not None:
            raise ValueError(f"override is {override}, but should be None for {kernel}, which has tiles of its own")
        return _hopper(*layer, options, triton, kernel)
    tokens_per_expert = tokens * shape.top_k / shape.experts
    free = kernel == "auto" and override is None
    if free and 0 < tokens_per_expert <= tuning_of(gpu).decode_up_to:
        name = hopper_gemv.NAME if _may_take_hopper(gpu, hopper_gemv.lacks(gpu, shape, triton)) else decode.NAME
        return _decode(*layer, options, triton, name, f"{tokens_per_expert:.3g} tokens per expert, {_card(gpu)}")
    if free and input_scales and tokens_per_expert >= w4a4.AUTO_FROM and w4a4.is_native(gpu, triton):
        return _w4a4(*layer, options, triton, "w4a4")
    if free and tokens_per_expert >= hopper.AUTO_FROM and _may_take_hopper(gpu, hopper.lacks(gpu, shape, triton)):
        return _hopper(*layer, options, triton, hopper.NAME)
    return _prefill(*layer, options, kernel if kernel in VARIANTS else DEFAULT, override)


Options = tuple[str, str, bool]  # dtype, activation, weight_on_input


def _decode(gpu: Gpu, shape: LayerShape, tokens: int, options: Options, triton: str, name: str, why: str) -> LayerPlan:
    """A kernel of DECODE; where the one for sm_90 cannot be, the other's launches."""
    reason, launches_of = f"{why}: a GEMV for each route", decode.launches
    if name == hopper_gemv.NAME:
        if lacks := hopper_gemv.lacks(gpu, shape, triton):
            reason += f", not for sm_90 ({lacks})"
        else:
            reason += f", on tensor cores in {' and '.join(hopper_gemv.stages(shape))}"
            launches_of = hopper_gemv.launches
    launches = launches_of(gpu, shape, *options) if tokens else ()
    return LayerPlan(name, shape, tokens, options[0], launches, reason)


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


def _may_take_hopper(gpu: Gpu, lacks: str) -> bool:
    """Not on slower cards of sm_90: what these kernels cost, known of an H200, may be more there than they save."""
    return not lacks and speed_class(gpu) == DATA_CENTER


def _hopper(gpu: Gpu, shape: LayerShape, tokens: int, options: Options, triton: str, name: str) -> LayerPlan:
    """Where it cannot be, the default kernel's launches, on banks as they are."""
    if lacks := hopper.lacks(gpu, shape, triton):
        plan = _prefill(gpu, shape, tokens, options, DEFAULT, None)
        return replace(plan, kernel=name, reason=f"{plan.reason}, not for sm_90 ({lacks})")
    if tokens == 0:
        return LayerPlan(name, shape, tokens, options[0], (), "no tokens: nothing to launch")
    tokens_per_expert = tokens * shape.top_k / shape.experts
    tile = hopper.tile(name, tokens_per_expert)
    reason = f"{tokens_per_expert:.3g} tokens per expert, {_card(gpu)}: block {tile.block_m}"
    return LayerPlan(name, shape, tokens, options[0], hopper.launches(name, shape, tile, *options), reason)


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
    tiles = w4a4.tiles(gpu, shape, form, tokens_per_expert, triton)
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


def _check_options(
    dtype: str, activation: str, weight_on_input: bool, input_scales: bool, kernel: str, override: Tile | None
) -> None:
    choice("dtype", dtype, DTYPES)
    choice("activation", activation, ACTIVATIONS)
    flag("weight_on_input", weight_on_input)
    flag("input_scales", input_scales)
    choice("kernel", kernel, KERNELS)
    if not isinstance(override, Tile | None):
        raise TypeError(f"override is {override!r}, but should be a Tile or None")


def _check_sizes(shape: LayerShape, tokens: int) -> None:
    if not isinstance(shape, LayerShape):
        raise TypeError(f"shape is {shape!r}, but should be a LayerShape")
    if shape.experts > MOST_EXPERTS:
        raise ValueError(f"experts is {shape.experts}, but should be at most {MOST_EXPERTS}, which the routing sorts")
    routes = whole("tokens", tokens, least=0) * shape.top_k
    if routes > MOST_ROUTES:
        raise ValueError(f"tokens * top_k is {routes}, but should be at most {MOST_ROUTES}, which the routing counts")


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
        tiles = (for_gemm(gpu, tile, k, variant, words) for k in (hidden, intermediate))
        found.append((least, here, tuple(tiles)))
    return tuple(found)


def _checked(tile: Tile, gpu: Gpu, variant: Variant) -> Tile:
    least, most = least_tile(variant), most_block_m(gpu, variant)
    if tile.num_warps > MOST_WARPS:
        raise ValueError(f"override's num_warps is {tile.num_warps}, but should be at most {MOST_WARPS}")
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
