"""Which kernels run, with which tiles: a pure function of GPU, shape, tokens and options. All dispatch is here."""

from dataclasses import dataclass, fields, replace
from functools import lru_cache

from ..contract.gpus import PORTABLE, Gpu, architecture, is_known
from ..contract.kernel import ACTIVATIONS, DTYPES
from ..contract.shapes import LayerShape
from . import prefill
from .launch import Launch
from .tuning import BLOCK_M_STEPS, PORTABLE_BLOCK_M_STEPS, Tile, prefill_tile, shared_memory

TRITONS = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")
KERNELS = ("auto", "prefill", prefill.NAME)


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
    if tokens == 0:
        return LayerPlan(prefill.NAME, shape, dtype, (), "no tokens: nothing to launch")
    if override is None:
        tokens_per_expert = tokens * shape.top_k / shape.experts
        tiles, why = _tiles(gpu, shape, tokens_per_expert), f"{tokens_per_expert:.3g} tokens per expert"
    else:
        tiles, why = (_checked(override, gpu),) * 2, "override"
    launches = prefill.launches(gpu, shape, tiles, dtype, activation, weight_on_input)
    card = gpu.name if is_known(gpu) or gpu == PORTABLE else f"{gpu.name} (unknown architecture, portable plan)"
    return LayerPlan(prefill.NAME, shape, dtype, launches, f"{why}, {card}: block {tiles[0].block_m}")


def _check_options(tokens: int, **chosen: str) -> None:
    allowed = {"triton": TRITONS, "dtype": DTYPES, "activation": ACTIVATIONS, "kernel": KERNELS}
    for name, value in chosen.items():
        if value not in allowed[name]:
            raise ValueError(f"{name} is {value!r}, but should be one of {', '.join(allowed[name])}")
    if tokens < 0:
        raise ValueError(f"tokens is {tokens}, but should be at least 0")


def _tiles(gpu: Gpu, shape: LayerShape, tokens_per_expert: float) -> tuple[Tile, Tile]:
    """The tiles of gate_up and down, which differ where only one of their K is ragged."""
    steps = BLOCK_M_STEPS if is_known(gpu) else PORTABLE_BLOCK_M_STEPS
    gate_up, down = (prefill_tile(tokens_per_expert, k, steps) for k in (shape.hidden, shape.intermediate))
    return _fitted(gate_up, gpu), _fitted(down, gpu)


def _fitted(tile: Tile, gpu: Gpu) -> Tile:
    """`tile` with as many of its stages as the GPU's shared memory holds."""
    while tile.num_stages > 1 and shared_memory(tile, architecture(gpu)) > architecture(gpu).shared_memory:
        tile = replace(tile, num_stages=tile.num_stages - 1)
    return tile


def _checked(tile: Tile, gpu: Gpu) -> Tile:
    # With 8 bytes (16 of K) a step, Triton 3.6.0 and 3.8.0 compile the mma.sync form without a word and its results are
    # wrong: an operand decoded from bytes takes 4 values of K a thread, which is 32 of K for one instruction.
    least = {"block_m": 16, "block_n": 16, "block_kb": 16, "num_warps": 1, "num_stages": 1}
    for field in fields(Tile):
        value = getattr(tile, field.name)
        if value < least[field.name] or (value & (value - 1) and field.name != "num_stages"):
            kind = "a number" if field.name == "num_stages" else "a power of two"
            raise ValueError(
                f"override's {field.name} is {value}, but should be {kind} of at least {least[field.name]}"
            )
    needed, limit = shared_memory(tile, architecture(gpu)), architecture(gpu).shared_memory
    if needed > limit:
        raise ValueError(f"override needs {needed:,} bytes of shared memory, but {gpu.name} has {limit:,} a block")
    return tile
