"""Every GEMM kernel of W4A16 on inputs richer than a layer can have them, bit for bit."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from nvfp4_suite.cases.stages import GEMMS, GemmCase
from nvfp4_suite.contract.gpus import PORTABLE
from nvfp4_suite.contract.kernel import DTYPES
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import hopper, registry
from nvfp4_suite.kernels.experts import release
from nvfp4_suite.kernels.plan import LayerPlan, plan_layer
from nvfp4_suite.kernels.tuning import BLOCK_M_STEPS
from nvfp4_suite.kernels.variants import DEFAULT
from nvfp4_suite.reference import judge, moe
from nvfp4_suite.reference.draws.stages import Gemm
from nvfp4_suite.reference.rounding import rounding_form

from ..engine import INTERPRETED, can_run, on_gpu
from ..moe.gate_up import activates
from . import launches

STAGES = ("gate_up", "down")
KERNELS = [one.name for one in registry.KERNELS.values() if "w4a16" in one.promise.formats and can_run(one)]
W4A16 = [case for case in GEMMS if case.format == "w4a16"]
# What the interpreter runs of kernels other than the default: K of whole steps and K with a rest, few programs.
FEW_K = (80, 192, 1024)
PER_EXPERT = [1, *on_gpu([least for least, _ in BLOCK_M_STEPS if least])]  # tokens, as a plan is told: every tile


def _plans(case: GemmCase, stage: str) -> list[LayerPlan]:
    """What kernels plan for `case` as that stage of a layer; of equal launches the first.

    In the interpreter, the cards take turns, and but for the default kernel few cases run.
    """
    sizes = (case.k, case.n // 2) if stage == "gate_up" else (case.n, case.k)
    shape, plans = LayerShape(case.experts, 1, *sizes), {}
    turn = W4A16.index(case) + STAGES.index(stage)
    cards = [launches.CARDS[turn % len(launches.CARDS)]] if INTERPRETED else launches.CARDS
    kernels = [DEFAULT] if INTERPRETED and case.k not in FEW_K else KERNELS
    for kernel, gpu, per_expert in product(kernels, cards, PER_EXPERT):
        options = {"triton": release(), "kernel": kernel, "dtype": case.dtype}
        plan = plan_layer(gpu, shape, case.experts * per_expert, **options)
        plans.setdefault(replace(plan.launch(stage), instruction=None), plan)
    return list(plans.values())


# Of the kernel for sm_90: rows for each width of both of its tiles, and K that leave steps behind its loop and none.
HOPPER = [
    GemmCase(8, 256, 256),
    GemmCase(40, 256, 320, "fp16"),
    GemmCase(70, 384, 384),
    GemmCase(130, 256, 704, "fp16"),
    GemmCase(200, 256, 256),
]


def _hopper_plans(case: GemmCase) -> list[LayerPlan]:
    """Either tile of its second GEMM, on banks as they are and prepared; none where it has none of its own."""
    if not (can_run(registry.KERNELS[hopper.NAME]) and activates(hopper.NAME)):
        return []
    shape = LayerShape(case.experts, 1, case.n, case.k)
    crowds = [(name, case.experts * least) for name in hopper.NAMES for least in (1, hopper.SMALL_BELOW[name])]
    return [plan_layer(launches.CARDS[1], shape, one, kernel=name, dtype=case.dtype) for name, one in crowds]


RUNS = [(case, stage, plan) for case in W4A16 for stage in STAGES for plan in _plans(case, stage)]
RUNS += [(case, "down", plan) for case in HOPPER for plan in _hopper_plans(case)]


def _expected(gemm: Gemm, stage: str) -> torch.Tensor:
    form = rounding_form(gemm.format, gemm.dtype)
    if stage == "gate_up":
        return torch.cat(moe.gate_up(*gemm.operands(), form), dim=1).to(gemm.dtype)
    return moe.down(*gemm.operands(), gemm.topk_weights.double(), form).to(gemm.dtype)


def _name(case: GemmCase, stage: str, plan: LayerPlan) -> str:
    launch = plan.launch(stage)
    sizes = "".join(f"-{name}{value}" for name, value in launch.constexprs if name in ("BLOCK_M", "WORDS"))
    return f"{case.id}-{stage}-{plan.kernel}-{dict(launch.arguments)['scale'].strip('*')}{sizes}"


@pytest.mark.parametrize(("case", "stage", "plan"), RUNS, ids=[_name(*run) for run in RUNS])
def test_gemm(case: GemmCase, stage: str, plan: LayerPlan, device):
    gemms = launches.drawn(case)
    for found, one in zip(launches.gemm(plan, stage, gemms, device), gemms, strict=True):
        x, weight, alpha = one.operands()
        operands = (x, weight * alpha[:, None])
        judge.bitwise(found, _expected(one, stage), operands=operands, case=case.id, plan=plan.reason)


# Each in both stages and both dtypes.
CONSTANTS = {
    "gemm.w4a16_gemm": {"K_UNIT": {16, 32, 64}, "SCALE_WORDS": {False, True}},
    "gemm_two_dots.w4a16_table_gemm": {"K_UNIT": {16, 32}},
    "gemm_two_dots.w4a16_pair_gemm": {"K_UNIT": {16, 32}, "EVEN_K": {False, True}},
    "gemv.w4a16_gemv": {"K_UNIT": {16, 32}, "WORDS": {32, 128}},
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kernel", CONSTANTS)
def test_every_gemm_runs_in_both_dtypes_and_with_all_its_constants(kernel, stage):
    plans = [plan for _, run, plan in RUNS if run == stage and plan.launch(stage).kernel == kernel]
    assert {plan.dtype for plan in plans} == set(DTYPES)
    for name, values in CONSTANTS[kernel].items():
        assert {plan.launch(stage).constexpr(name) for plan in plans} == values


def test_these_are_the_gemms_of_all_kernels():
    plans = [plan_layer(PORTABLE, LayerShape(1, 1, 64, 64), 1, kernel=kernel) for kernel in KERNELS]
    assert {plan.launch(stage).kernel for plan in plans for stage in STAGES} == set(CONSTANTS)
