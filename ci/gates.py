"""The compile gates: every launch that a plan can choose, judged by what the compiler makes of it.

Needs Triton, but neither torch nor a GPU. `launches` lists what is gated, `compile_in_child` compiles one of them and
`check` compares the facts with what the launch and its architecture demand.
"""

from dataclasses import replace
from functools import cache
from itertools import product

from ..contract.gpus import ARCHITECTURES, CATALOG, PORTABLE, Gpu
from ..contract.kernel import ACTIVATIONS, DTYPES
from ..contract.shapes import CHECKPOINTS, LayerShape
from ..kernels.launch import Launch
from ..kernels.linear_plan import SPLITS, plan_linear
from ..kernels.plan import plan_layer
from ..kernels.pointwise import quantize
from ..kernels.variants import DEFAULT, VARIANTS
from ..kernels.w4a4 import FORMS
from .gate_compile import Capability, Facts, GateError, arch_name, compile_in_child, compile_launch

__all__ = [
    "Facts",
    "GateError",
    "arch_name",
    "check",
    "compile_in_child",
    "compile_launch",
    "launch_id",
    "launches",
    "tile_name",
]

GATED: tuple[Capability, ...] = ((8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1))
NAMES = ("Qwen3.6-35B-A3B", "Qwen3.5-122B-A10B", "Qwen3.8-Flash", "Gemma-4-26B-A4B", "MiniMax-M2.5", "GLM-4.7")
SHAPES = tuple(CHECKPOINTS[name] for name in NAMES)
RAGGED = LayerShape(256, 8, 272, 80)  # no K of the six is an odd multiple of 16, which is another binary
LONG = LayerShape(256, 8, 2048, 2048)  # a down of long K, which some tunings give more warps
TOKENS = (1, 3, 16, 64, 100, 128, 150, 256, 512, 1024, 2048, 4096, 8192, 32768)  # every tile of every shape

# One GEMM of each of these plans stands for all that a variant other than the default chooses, which crossed would take
# many minutes. Among them are both blocks, both dtypes, weighted and not, and every kind of K: of whole steps, with a
# ragged last step, and an odd multiple of 16.
SAMPLES: tuple[tuple[int, LayerShape, str, str], ...] = (  # tokens, shape, dtype, stage
    (1, LayerShape(256, 8, 2048, 512), "bf16", "gate_up"),
    (4096, LayerShape(256, 8, 2048, 512), "fp16", "down"),
    (1, LayerShape(256, 8, 2048, 96), "fp16", "down"),
    (4096, RAGGED, "bf16", "gate_up"),
)

# Of W4A4, likewise: all blocks, kinds of K, dtypes, activations, weighted and not, and down all ways: from a K of 1024
# on, its programs have a tile each.
W4A4_SAMPLES: tuple[tuple[int, LayerShape, str, str, bool, str], ...] = (
    (1, SHAPES[0], "bf16", "silu", False, "prefill_w4a4"),
    (512, RAGGED, "fp16", "gelu", True, "prefill_w4a4"),
    (4096, SHAPES[0], "fp16", "gelu_tanh", True, "prefill_w4a4_atomic"),
    (4096, RAGGED, "bf16", "swigluoai", False, "prefill_w4a4_atomic"),
    (1, RAGGED, "fp16", "swigluoai", True, "prefill_w4a4_native"),
    (4096, SHAPES[0], "bf16", "gelu", False, "prefill_w4a4_native"),
    (512, SHAPES[0], "bf16", "silu", False, "prefill_w4a4_native"),
    (16, LONG, "bf16", "silu", False, "prefill_w4a4"),
    (4096, LayerShape(256, 8, 2048, 1040), "fp16", "silu", True, "prefill_w4a4"),
    (512, LONG, "bf16", "silu", False, "prefill_w4a4_atomic"),
    (4096, LONG, "fp16", "silu", False, "prefill_w4a4_native"),
    (1, SHAPES[0], "bf16", "silu", False, "prefill_w4a4_specialized"),
    (512, LONG, "fp16", "silu", True, "prefill_w4a4_specialized"),
    (4096, SHAPES[0], "fp16", "silu", False, "prefill_w4a4_specialized"),
)

# Of a linear layer: rows for the GEMV and for both blocks; K that is cut wide, narrow, and ragged.
LINEAR_ROWS, LINEAR_K = (1, 16, 64), (4096, 640, 272)


@cache
def launches() -> tuple[tuple[Capability, Launch], ...]:
    """Every (capability, launch) to gate, each binary once: two stages that run the same binary are one launch.

    An architecture gets what the plans of its own GPUs choose and, because a GPU that the catalog does not know runs
    it, the portable plan. Both cross SHAPES (its own also RAGGED and LONG), TOKENS, dtypes, activations and
    weight_on_input. Of the variants that are kept for comparison it gets SAMPLES, of W4A4 W4A4_SAMPLES, and of the
    linear layer its own GPUs' plans alone: the portable plan's loops are those of the layers.
    """
    found: dict[tuple[Capability, Launch], tuple[Capability, Launch]] = {}
    portable = _planned(PORTABLE, SHAPES) + _decode(PORTABLE, SHAPES)
    for capability in GATED:
        instruction = ARCHITECTURES[capability].matrix_instruction
        gpus = [gpu for gpu in CATALOG if gpu.capability == capability]
        shapes = (*SHAPES, RAGGED, LONG)
        own = [launch for gpu in gpus for launch in _planned(gpu, shapes) + _decode(gpu, shapes)]
        others = [replace(launch, instruction=launch.instruction and instruction) for launch in portable]
        rest = [launch for gpu in gpus for launch in _samples(gpu) + _w4a4(gpu) + _linear(gpu)]
        for launch in own + others + rest:
            found.setdefault((capability, replace(launch, stage="")), (capability, launch))
    return tuple(found.values())


def _planned(gpu: Gpu, shapes: tuple[LayerShape, ...]) -> list[Launch]:
    """The launches of all plans for `gpu` and `shapes`, in the order of their first appearance."""
    plans = (
        plan_layer(gpu, shape, tokens, dtype=dtype, activation=activation, weight_on_input=weight_on_input)
        for dtype in DTYPES
        for shape in shapes
        for tokens in TOKENS
        for activation in ACTIVATIONS
        for weight_on_input in (False, True)
    )
    return list(dict.fromkeys(launch for plan in plans for launch in plan.launches))


def _samples(gpu: Gpu) -> list[Launch]:
    return [
        plan_layer(gpu, shape, tokens, dtype=dtype, kernel=name).launch(stage)
        for name in VARIANTS
        if name != DEFAULT
        for tokens, shape, dtype, stage in SAMPLES
    ]


def _w4a4(gpu: Gpu) -> list[Launch]:
    plans = (
        plan_layer(
            gpu, shape, tokens, dtype=dtype, activation=name, weight_on_input=weigh, input_scales=True, kernel=kernel
        )
        for tokens, shape, dtype, name, weigh, kernel in W4A4_SAMPLES
    )
    plans = [plan for plan in plans if not FORMS[plan.kernel].native or plan.launch("gate_up").constexpr("NATIVE")]
    return [launch for plan in plans for launch in plan.launches] + [quantize(dtype, "128x4") for dtype in DTYPES]


def _decode(gpu: Gpu, shapes: tuple[LayerShape, ...]) -> list[Launch]:
    """The launches of all decode plans, in which the number of tokens has no part."""
    plans = (
        plan_layer(gpu, shape, 1, dtype=dtype, weight_on_input=weight_on_input, kernel="decode")
        for dtype, shape, weight_on_input in product(DTYPES, shapes, (False, True))
    )
    return list(dict.fromkeys(launch for plan in plans for launch in plan.launches))


def _linear(gpu: Gpu) -> list[Launch]:
    plans = (
        plan_linear(gpu, rows, 4096, k, dtype=dtype, split_k=split_k)
        for dtype, rows, k, split_k in product(DTYPES, LINEAR_ROWS, LINEAR_K, SPLITS)
    )
    return list(dict.fromkeys(launch for plan in plans for launch in plan.launches))


def launch_id(capability: Capability, launch: Launch) -> str:
    """Names a gate: "sm_90-gate_up-w4a16_gemm-bf16-fp8e4nv-m128-n64-kb32-unit32-4w-3s"."""
    types = dict.fromkeys(kind[1:] for _, kind in launch.arguments if kind in ("*bf16", "*fp16", "*fp8e4nv"))
    options = (_short(name, value) for name, value in launch.constexprs if not _is_size(value))
    names = dict.fromkeys((launch.stage, launch.kernel.rsplit(".", 1)[-1]))
    parts = [arch_name(capability), *names, *types, *options, *tile_name(launch).split(" ")]
    return "-".join(part for part in parts if part)


def tile_name(launch: Launch) -> str:
    """The sizes that a launch is compiled for, its warps and stages: "m128 n64 kb32 4w 3s"."""
    sizes = [_short(name, value) for name, value in launch.constexprs if _is_size(value)]
    return " ".join([*sizes, f"{launch.num_warps}w", f"{launch.num_stages}s"])


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _short(name: str, value: object) -> str:
    """BLOCK_M=128 as "m128", a flag by its name where it is set, a string as it is."""
    if isinstance(value, bool):
        return name.lower() if value else ""
    return value if isinstance(value, str) else f"{name.rsplit('_', 1)[-1].lower()}{value}"


def check(facts: Facts, launch: Launch, capability: Capability) -> None:
    """Raises GateError with all that is wrong with `facts`, the compiled `launch` for `capability`.

    There is a cubin, for this architecture; shared memory stays within the opt-in limit; all matrix instructions are
    of the kind that the launch expects, and there are none where it expects none; nothing is spilled.
    """
    arch, limit = arch_name(capability), ARCHITECTURES[capability].shared_memory
    kinds = sorted({instruction.split(" ")[0] for instruction in facts.instructions})
    expected, _, name = (launch.instruction or "").partition(" ")
    wrong = []
    if not facts.cubin_bytes:
        wrong.append("there is no cubin, but should be one")
    if facts.target.rstrip("af") != arch:
        wrong.append(f"the target is {facts.target}, but should be {arch}")
    if facts.shared_bytes > limit:
        wrong.append(f"shared memory is {facts.shared_bytes:,} bytes, but should be at most {limit:,}")
    if kinds != ([expected] if expected else []) or not all(name in one for one in facts.instructions):
        found, wanted = " and ".join(facts.instructions if name else kinds) or "none", launch.instruction or "none"
        wrong.append(f"the matrix instruction is {found}, but should be {wanted}")
    if facts.stack_bytes:
        wrong.append(f"the stack is {facts.stack_bytes:,} bytes a thread (spilled registers), but should be 0")
    if wrong:
        raise GateError(f"{launch.label} on {arch}: " + "; ".join(wrong))
