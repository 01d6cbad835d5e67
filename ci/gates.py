"""The compile gates: every launch that a plan can choose, judged by what the compiler makes of it.

Needs Triton, but neither torch nor a GPU. `launches` lists what is gated, `compile_in_child` compiles one of them and
`check` compares the facts with what the launch and its architecture demand. gate_choice.py says what a run takes of it.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import product

from ..contract.gpus import ARCHITECTURES, PORTABLE, Gpu
from ..contract.kernel import ACTIVATIONS, DTYPES
from ..contract.shapes import CHECKPOINTS, LayerShape
from ..kernels import hopper, hopper_gemv, pointwise, w4a4
from ..kernels.launch import Launch
from ..kernels.linear_plan import SPLITS, LinearPlan, plan_linear
from ..kernels.plan import LayerPlan, plan_layer
from ..kernels.releases import NO_ASSEMBLER
from ..kernels.variants import DEFAULT, VARIANTS
from .gate_compile import arch_name, compile_in_child, compile_launch
from .gate_facts import Capability, Facts, GateError
from .gate_rules import check
from .plans import CARDS, TOKENS

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
DEFAULT_TRITON = "3.8.0"

RAGGED = LayerShape(256, 8, 272, 80)  # no published K is an odd multiple of 16, which is another binary

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
    (1, CHECKPOINTS["Qwen3.6-35B-A3B"], "bf16", "silu", False, "prefill_w4a4"),
    (512, RAGGED, "fp16", "gelu", True, "prefill_w4a4"),
    (4096, CHECKPOINTS["Qwen3.6-35B-A3B"], "fp16", "gelu_tanh", True, "prefill_w4a4_atomic"),
    (4096, RAGGED, "bf16", "swigluoai", False, "prefill_w4a4_atomic"),
    (1, RAGGED, "fp16", "swigluoai", True, "prefill_w4a4_native"),
    (4096, CHECKPOINTS["Qwen3.6-35B-A3B"], "bf16", "gelu", False, "prefill_w4a4_native"),
    (512, CHECKPOINTS["Qwen3.6-35B-A3B"], "bf16", "silu", False, "prefill_w4a4_native"),
    (16, CHECKPOINTS["GLM-5.2"], "bf16", "silu", False, "prefill_w4a4"),
    (4096, LayerShape(256, 8, 2048, 1040), "fp16", "silu", True, "prefill_w4a4"),
    (512, CHECKPOINTS["GLM-5.2"], "bf16", "silu", False, "prefill_w4a4_atomic"),
    (4096, CHECKPOINTS["GLM-5.2"], "fp16", "silu", False, "prefill_w4a4_native"),
    (1, CHECKPOINTS["Qwen3.6-35B-A3B"], "bf16", "silu", False, "prefill_w4a4_specialized"),
    (512, CHECKPOINTS["GLM-5.2"], "fp16", "gelu", True, "prefill_w4a4_specialized"),
    (4096, CHECKPOINTS["Qwen3.6-35B-A3B"], "fp16", "gelu_tanh", False, "prefill_w4a4_specialized"),
    (4096, CHECKPOINTS["Qwen3.6-35B-A3B"], "bf16", "swigluoai", False, "prefill_w4a4_specialized"),
)

# Of a linear layer: rows for the GEMV and for both blocks, with K that is cut wide and narrow, in both dtypes; and of a
# ragged K, as of a ragged layer, one dtype a block.
LINEAR_ROWS, LINEAR_K = (1, 16, 64), (4096, 640)
LINEAR_RAGGED: tuple[tuple[int, str], ...] = ((1, "bf16"), (16, "bf16"), (64, "fp16"))


@cache
def launches(
    triton: str = DEFAULT_TRITON, capabilities: tuple[Capability, ...] = GATED
) -> tuple[tuple[Capability, Launch], ...]:
    """Every (capability, launch) to gate, each binary once: two stages that run the same binary are one launch.

    An architecture gets all that the plans of its cards choose for every published shape and number of tokens, crossed
    with dtypes, activations and weight_on_input, and for linear layers. It gets samples of what no card chooses by
    itself: a K that is an odd multiple of 16 (see `_ragged`), the variants that are kept for comparison, W4A4 without
    an FP4 instruction or on a ragged K, and decode with emulated e4m3, which stands for the portable plan; an
    architecture without e4m3 gates that plan whole.
    """
    found: dict[tuple[Capability, Launch], tuple[Capability, Launch]] = {}
    for capability in capabilities:
        by = planning_triton(capability, triton)
        gpus = [gpu for gpu in CARDS if gpu.capability == capability]
        layers = [launch for gpu in gpus for launch in _published(gpu, by) + _ragged(gpu, by)]
        rest = [
            launch for gpu in gpus for launch in _samples(gpu, by) + _hopper(gpu, by) + _w4a4(gpu, by) + _linear(gpu)
        ]
        for launch in layers + rest + _portable(capability, by):
            found.setdefault((capability, replace(launch, stage="")), (capability, launch))
    return tuple(found.values())


def planning_triton(capability: Capability, triton: str) -> str:
    """The release by whose plans `triton` gates `capability`: one that cannot plan for it gates what the default does.

    So an unexpected pass shows.
    """
    return DEFAULT_TRITON if triton in NO_ASSEMBLER.get(capability, ()) else triton


def _published(gpu: Gpu, triton: str) -> list[Launch]:
    """The launches of all plans for `gpu` and published shapes: what "auto" chooses, prefill and decode."""
    plans = (
        plan_layer(gpu, shape, tokens, triton=triton, dtype=dtype, weight_on_input=weigh, kernel=kernel)
        for shape in CHECKPOINTS.values()
        for steps in [_steps(gpu, shape, triton=triton, kernel="prefill")]
        for dtype, weigh in product(DTYPES, (False, True))
        for tokens, kernel in (*((tokens, "prefill") for tokens in steps), (1, "decode"))
    )
    return _distinct(plans) + [pointwise.activation(*pair) for pair in product(DTYPES, ACTIVATIONS)]


def _ragged(gpu: Gpu, triton: str) -> list[Launch]:
    """Of a ragged layer: every block and every cut, weighted and not, in one dtype each, which alternates."""
    plans = []
    for tokens in TOKENS:
        plan = plan_layer(gpu, RAGGED, tokens, triton=triton, kernel="prefill")
        dtype = DTYPES[plan.launch("gate_up").constexpr("BLOCK_M").bit_length() % 2]
        plans.append(plan_layer(gpu, RAGGED, tokens, triton=triton, dtype=dtype, kernel="prefill"))
    return _distinct([*plans, plan_layer(gpu, RAGGED, 1, triton=triton, kernel="decode")])


def _samples(gpu: Gpu, triton: str) -> list[Launch]:
    return [
        plan_layer(gpu, shape, tokens, triton=triton, dtype=dtype, kernel=name).launch(stage)
        for name in VARIANTS
        if name != DEFAULT
        for tokens, shape, dtype, stage in SAMPLES
    ]


def _hopper(gpu: Gpu, triton: str) -> list[Launch]:
    """All of the kernels for sm_90 that plans of published shapes can choose.

    On prepared banks with one activation; decode's, which stands by itself, is gated anyway.
    """
    if gpu.capability != hopper.CAPABILITY or triton not in hopper.TRITONS:
        return []
    options = [(hopper.NAME, activation) for activation in ACTIVATIONS]
    options += [(hopper.PREPARED, "silu"), (hopper_gemv.NAME, "silu")]
    steps = {
        shape: sorted({first for name in hopper.NAMES for first in _steps(gpu, shape, triton=triton, kernel=name)})
        for shape in CHECKPOINTS.values()
    }
    return _distinct(
        plan_layer(
            gpu,
            shape,
            tokens,
            triton=triton,
            dtype=dtype,
            activation=activation,
            weight_on_input=weigh,
            kernel=name,
        )
        for shape, dtype, weigh in product(CHECKPOINTS.values(), DTYPES, (False, True))
        for tokens, (name, activation) in product(steps[shape], options)
    )


def _w4a4(gpu: Gpu, triton: str) -> list[Launch]:
    """W4A4_SAMPLES, the quantizer, and all that "auto" chooses of W4A4 on a card with an FP4 instruction."""
    able = [sample for sample in W4A4_SAMPLES if w4a4.is_native(gpu, triton) or not w4a4.FORMS[sample[-1]].native]
    samples = [_with_input_scales(gpu, triton, *sample) for sample in able]
    return _distinct([*samples, *_native(gpu, triton)]) + [pointwise.quantize(dtype, "128x4") for dtype in DTYPES]


def _native(gpu: Gpu, triton: str) -> list[LayerPlan]:
    """All that "auto" chooses on a card with an FP4 instruction.

    A release that does not make it gates a plan of the default's, so that an unexpected pass shows.
    """
    if not w4a4.is_native(gpu, triton):
        plan = _with_input_scales(gpu, DEFAULT_TRITON, 4096, CHECKPOINTS["GLM-5.2"], "bf16", "silu", False, "w4a4")
        return [plan] if w4a4.is_native(gpu, DEFAULT_TRITON) else []
    return [
        _with_input_scales(gpu, triton, tokens, shape, dtype, activation, weigh, "w4a4")
        for shape in CHECKPOINTS.values()
        for steps in [_steps(gpu, shape, triton=triton, kernel="w4a4", input_scales=True)]
        for dtype, weigh in product(DTYPES, (False, True))
        for tokens, activation in product(steps, ACTIVATIONS)
    ]


def _steps(gpu: Gpu, shape: LayerShape, **options) -> list[int]:
    """The first of TOKENS for each of `shape`'s plans: neither dtype nor activation nor weights choose a tile."""
    first: dict[tuple[int, ...], int] = {}
    for tokens in TOKENS:
        launches = plan_layer(gpu, shape, tokens, **options).launches
        first.setdefault(tuple(map(id, launches)), tokens)  # equal launches are one object, or one plan more
    return list(first.values())


def _with_input_scales(
    gpu: Gpu, triton: str, tokens: int, shape: LayerShape, dtype: str, activation: str, weigh: bool, kernel: str
) -> LayerPlan:
    options = {"dtype": dtype, "activation": activation, "weight_on_input": weigh, "kernel": kernel}
    return plan_layer(gpu, shape, tokens, triton=triton, input_scales=True, **options)


def _portable(capability: Capability, triton: str) -> list[Launch]:
    """What stands for the portable plan on `capability`, with the instruction that is to come out there."""
    if ARCHITECTURES[capability].native_e4m3:
        launches = [
            plan_layer(PORTABLE, shape, 1, triton=triton, dtype=dtype, kernel="decode").launch("down")
            for shape, dtype in ((CHECKPOINTS["GLM-5.2"], "bf16"), (RAGGED, "fp16"))
        ]
    else:
        launches = _published(PORTABLE, triton) + _ragged(PORTABLE, triton)
    instruction = ARCHITECTURES[capability].matrix_instruction
    return [replace(launch, instruction=launch.instruction and instruction) for launch in launches]


def _linear(gpu: Gpu) -> list[Launch]:
    sizes = [(rows, k, dtype) for rows, k, dtype in product(LINEAR_ROWS, LINEAR_K, DTYPES)]
    sizes += [(rows, RAGGED.hidden, dtype) for rows, dtype in LINEAR_RAGGED]
    return _distinct(
        plan_linear(gpu, rows, 4096, k, dtype=dtype, split_k=split_k)
        for (rows, k, dtype), split_k in product(sizes, SPLITS)
    )


def _distinct(plans: Iterable[LayerPlan | LinearPlan]) -> list[Launch]:
    """The launches of all `plans`, in the order of their first appearance."""
    objects = {id(launch): launch for plan in plans for launch in plan.launches}  # plans share many
    return list(dict.fromkeys(objects.values()))


def launch_id(capability: Capability, launch: Launch) -> str:
    """Names a gate: "sm_90-gate_up-w4a16_gemm-bf16-fp8e4nv-m128-n64-kb32-unit32-4w-3s"."""
    types = dict.fromkeys(kind[1:] for _, kind in launch.arguments if kind in ("*bf16", "*fp16", "*fp8e4nv"))
    options = (_short(name, value) for name, value in launch.constexprs if not is_size(value))
    names = dict.fromkeys((launch.stage, launch.kernel.rsplit(".", 1)[-1]))
    parts = [arch_name(capability), *names, *types, *options, *tile_name(launch).split(" ")]
    return "-".join(part for part in parts if part)


def tile_name(launch: Launch) -> str:
    """The sizes that a launch is compiled for, its warps and stages: "m128 n64 kb32 4w 3s"."""
    sizes = [_short(name, value) for name, value in launch.constexprs if is_size(value)]
    return " ".join([*sizes, f"{launch.num_warps}w", f"{launch.num_stages}s"])


def is_size(value: object) -> bool:
    """Whether the value of a constexpr is a size, not an option."""
    return isinstance(value, int) and not isinstance(value, bool)


def _short(name: str, value: object) -> str:
    """BLOCK_M=128 as "m128", a flag by its name where it is set, a string as it is."""
    if isinstance(value, bool):
        return name.lower() if value else ""
    return value if isinstance(value, str) else f"{name.rsplit('_', 1)[-1].lower()}{value}"
