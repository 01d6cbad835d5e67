"""For any launch of any card's plans a small order-free layer that runs it: it takes its place in this card's plan."""

from dataclasses import replace
from functools import cache

from nvfp4_suite.ci import gates
from nvfp4_suite.contract import gpus
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.gpus import CATALOG, PORTABLE, Gpu, architecture
from nvfp4_suite.contract.kernel import DTYPES
from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape
from nvfp4_suite.kernels import hopper, hopper_gemv
from nvfp4_suite.kernels.launch import Launch
from nvfp4_suite.kernels.linear_plan import LinearPlan, plan_linear
from nvfp4_suite.kernels.plan import LayerPlan, plan_layer
from nvfp4_suite.kernels.pointwise import COLUMN_BLOCK
from nvfp4_suite.kernels.tiles import Tile, most_block_m
from nvfp4_suite.kernels.variants import DEFAULT, FORMS, VARIANTS, Variant
from nvfp4_suite.kernels.w4a4 import ATOMIC, FP4_KIND
from nvfp4_suite.kernels.w4a4 import DEFAULT as W4A4

from ..engine import INTERPRETED
from ..moe.subject import plan_options

H200 = Gpu("NVIDIA H200", (9, 0))
HOST = H200 if INTERPRETED else gpus.current(0)
GEMVS = ("gemv.w4a16_gemv", hopper_gemv.GEMV)
OTHER = 96  # the sizes that the launch says nothing of: a block of 64 and a part of one
MANY_EXPERTS, CHUNK = 70, 128  # more than one block of experts; tokens of more than one chunk of routes
UNEVEN = LayerShape(256, 8, 2048, 96)  # no step of down's K is whole


@cache
def launches() -> dict[str, Launch]:
    """Every binary that some card's plans run, by name.

    The gates list them, but for the kernels kept for comparison, of which they take samples, as they do of W4A4. What
    instruction a launch expects makes no other binary; it is what another card's compiler would choose.
    """
    gated = [launch for _, launch in gates.launches() if has_host(launch)]
    found = {launch.binary: launch for launch in [*_compared(), *gated]}
    return {name_of(launch): replace(launch, instruction=None) for launch in found.values()}


def has_host(launch: Launch) -> bool:
    """Not an FP4 instruction, which runs where there is one, nor tiles of block scales, which no layer has.

    Of the kernel for sm_90, which takes seconds to compile, one activation, and of each number of stages one rest.
    """
    constants = dict(launch.constexprs)
    if is_hopper(launch):
        rest = {8: 0, 6: 4}.get(constants["STAGES"], 1)
        return constants.get("ACTIVATION", "silu") == "silu" and constants["REST"] == rest
    return FP4_KIND not in (launch.instruction or "") and not constants.get("SWIZZLED")


def is_hopper(launch: Launch) -> bool:
    return launch.kernel in (hopper.GATE_UP, hopper.DOWN)


def needs_sm_90(launch: Launch) -> bool:
    return is_hopper(launch) or launch.kernel == hopper_gemv.GEMV


def of_w4a4(launch: Launch) -> bool:
    return launch.kernel.partition(".")[0] in ("quantize", "w4a4")


def name_of(launch: Launch) -> str:
    """As the gates name it, without an architecture."""
    return gates.launch_id(HOST.capability or (0, 0), launch).partition("-")[2]


def can_run(launch: Launch) -> bool:
    """Whether this session's card can: an H200 can run them all, no card has more shared memory."""
    if needs_sm_90(launch) and HOST.capability != hopper.CAPABILITY:
        return False
    needs_e4m3 = any(kind == "*fp8e4nv" for _, kind in launch.arguments)
    if needs_e4m3 and not architecture(HOST).native_e4m3:
        return False
    most = {FORMS[form]: most_block_m(HOST, Variant(form)) for form in FORMS}.get(launch.kernel)
    return most is None or launch.constexpr("BLOCK_M") <= most


def _compared() -> list[Launch]:
    plans = (
        plan_layer(gpu, shape, tokens, dtype=dtype, weight_on_input=weight_on_input, kernel=name)
        for gpu in (*CATALOG, PORTABLE)
        for shape in (CHECKPOINTS["Qwen3.6-35B-A3B"], UNEVEN, gates.RAGGED)
        for tokens in (1, 4096)
        for dtype in DTYPES
        for weight_on_input in (False, True)
        for name in VARIANTS
        if name != DEFAULT
    )
    return list(dict.fromkeys(launch for plan in plans for launch in plan.launches))


def is_linear(launch: Launch) -> bool:
    return launch.stage in ("gemv", "gemm", "sum_splits")


def layer_host(launch: Launch) -> tuple[Case, LayerPlan]:
    """A case, and the plan for it in which `launch` runs."""
    constants = dict(launch.constexprs)
    case = _case(launch)
    options = plan_options(case)
    if is_hopper(launch) or launch.stage == "interleave_k":
        options["kernel"] = hopper.PREPARED if hopper.wants_prepared(launch) else hopper.NAME
    elif of_w4a4(launch):  # whose block follows from the number of tokens
        options["kernel"] = ATOMIC if case.atomics else W4A4
    else:
        options["kernel"] = "decode" if launch.kernel in GEMVS else "prefill"
        options["override"] = Tile(constants["BLOCK_M"]) if "BLOCK_M" in constants else None
    plan = plan_layer(H200 if options["kernel"] in hopper.NAMES else HOST, case.shape, case.tokens, **options)
    return case, _taking_its_place(launch, plan)


def _case(launch: Launch) -> Case:
    constants = dict(launch.constexprs)
    shape, tokens, routing = _sizes(launch)
    return Case(
        shape,
        tokens,
        routing,
        format="w4a4" if of_w4a4(launch) else "w4a16",
        atomics=constants.get("ATOMIC", False),
        dtype=_dtype(launch),
        activation=constants.get("ACTIVATION", "silu"),
        activation_limit=64.0,
        weight_on_input=launch.stage == "weigh_input" or (launch.stage == "down" and not constants["WEIGHTED"]),
    )


def _sizes(launch: Launch) -> tuple[LayerShape, int, str]:
    """(shape, tokens, routing); in a GEMM's, one expert's routes are a block and one more."""
    constants = dict(launch.constexprs)
    if is_hopper(launch):
        return _hopper_sizes(launch.stage, constants)
    if launch.stage == "interleave_k":
        return LayerShape(4, 2, COLUMN_BLOCK + 128, 256), 8, "dropped"
    if launch.stage in ("count_routes", "scan_counts", "list_blocks", "place_routes"):
        shape, tokens, routing = LayerShape(MANY_EXPERTS, 2, OTHER, OTHER), CHUNK + 1, "dropped"
    elif launch.stage == "gate_up":
        shape, tokens, routing = LayerShape(4, 2, _k(constants), OTHER), 3, "random"
    elif launch.stage == "down":  # atomics need three slots, and as many tokens per expert want a fifth expert
        experts, top_k = (5, 3) if constants.get("ATOMIC") else (4, 2)
        shape, tokens, routing = LayerShape(experts, top_k, OTHER, _k(constants)), 3, "random"
    elif launch.stage == "quantize":  # its block of rows is no block of routes
        return LayerShape(4, 2, COLUMN_BLOCK + 16, OTHER), 8, "dropped"
    else:
        shape, tokens, routing = LayerShape(4, 2, COLUMN_BLOCK + 16, COLUMN_BLOCK + 16), 8, "dropped"
    return (shape, constants["BLOCK_M"] + 1, "hot") if "BLOCK_M" in constants else (shape, tokens, routing)


def _hopper_sizes(stage: str, constants: dict) -> tuple[LayerShape, int, str]:
    """One expert fills a block, and a part of one more; K is the least with those stages and that rest."""
    unit = 128 if stage == "gate_up" else 64
    block_m, stages, rest = (constants[name] for name in ("BLOCK_M", "STAGES", "REST"))
    loops = {(hopper.stages_of(k, hopper.tile_of(block_m)), k // 64 % stages): k for k in range(8192, 255, -unit)}
    k = loops[stages, rest]
    return LayerShape(2, 1, *((k, 256) if stage == "gate_up" else (256, k))), block_m + block_m // 8, "hot"


def linear_host(launch: Launch) -> tuple[tuple[int, int, int, str], LinearPlan]:
    """(m, n, k, dtype) of a linear layer, and the plan for it in which `launch` runs."""
    constants = dict(launch.constexprs)
    m = constants["BLOCK_M"] + 1 if "BLOCK_M" in constants else 2
    k = OTHER if launch.stage == "sum_splits" else _k(constants)
    split_k = 2 if constants.get("PARTIAL", launch.stage == "sum_splits") else 1
    sizes = (m, COLUMN_BLOCK + 16 if launch.stage == "sum_splits" else OTHER, k)
    split_k = "auto" if launch.stage == "gemv" else split_k
    plan = plan_linear(HOST, *sizes, dtype=_dtype(launch), split_k=split_k)
    return (*sizes, plan.dtype), _taking_its_place(launch, plan)


def _k(constants: dict) -> int:
    """Some steps and, unless the launch is compiled for whole steps, a last one that is not whole."""
    if "STAGES" in constants:
        return 3 * constants["K_UNIT"]  # a step, of which a ring has STAGES
    step = 2 * constants["BLOCK_KB"] if "BLOCK_KB" in constants else 8 * constants["WORDS"]
    steps = 3 if constants.get("PARTIAL") else 1  # two parts of K, the second ragged
    return steps * step + (step if constants.get("EVEN_K") else constants["K_UNIT"])


def _dtype(launch: Launch) -> str:
    return "fp16" if any(kind == "*fp16" for _, kind in launch.arguments) else "bf16"


def _taking_its_place(launch: Launch, plan):
    launches = tuple(launch if other.stage == launch.stage else other for other in plan.launches)
    if launch not in launches:
        raise ValueError(f"{launch.label} has no place among {', '.join(other.stage for other in plan.launches)}")
    return replace(plan, launches=launches)
