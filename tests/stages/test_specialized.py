"""The warp-specialized W4A4 GEMMs, whose FP4 instruction no hardware here has: all the rest of them, bit for bit.

On a GPU without it, the operands of each instruction are decoded and multiplied in 16 bits, which gives the same sums;
loads, barriers, the order of tiles and the stores are those of sm_120. Triton's interpreter runs no Gluon: on the CPU
the groups of warps take turns, see gluon_on_cpu.py.
"""

from typing import NamedTuple

import pytest
import torch
import triton

from nvfp4_suite.cases.stages import GemmCase
from nvfp4_suite.contract import gpus
from nvfp4_suite.contract.case import Case, torch_dtype
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.kernel import ACTIVATIONS
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import launch, w4a4_layer
from nvfp4_suite.kernels.plan import LayerPlan, plan_layer
from nvfp4_suite.kernels.w4a4 import DEFAULT, SPECIALIZED, SPECIALIZED_DOWN, SPECIALIZED_GATE_UP, SPECIALIZED_TRITONS
from nvfp4_suite.reference import judge, moe
from nvfp4_suite.reference.rounding import rounding_form

from ..engine import INTERPRETED, on_gpu
from ..moe.subject import context_of, expected_of, plan_options, run_plan
from . import w4a4_launches as launches
from .launches import drawn
from .test_w4a4 import together

# An earlier Triton does not compile them: there the kernel's name stands for plain GEMMs, here decoded ones.
KNOWN = triton.__version__.split("+")[0] in SPECIALIZED_TRITONS[12, 0]
A100 = Gpu("NVIDIA A100-SXM4-80GB", (8, 0))
CARD = Gpu("NVIDIA GeForce RTX 5090", (12, 0)) if KNOWN else A100
KERNELS = (SPECIALIZED_GATE_UP, SPECIALIZED_DOWN)

# K of half a step, of whole steps and of more than the ring has; N that is no multiple of a tile; every block.
GEMMS = [
    GemmCase(8, 96, 64, format="w4a4"),
    GemmCase(8, 288, 320, format="w4a4", dtype="fp16", experts=1),
    *on_gpu(
        [
            GemmCase(8, 288, 640, format="w4a4", dtype="fp16", experts=3),
            GemmCase(17, 160, 320, format="w4a4"),
            GemmCase(70, 288, 1088, format="w4a4", dtype="fp16", experts=3),
        ]
    ),
]
LAYERS = [
    Case(LayerShape(6, 2, 192, 64), 4, "few", format="w4a4", activation="gelu"),  # it needs not all of its blocks
    Case(LayerShape(3, 3, 64, 192), 6, "dropped", format="w4a4", dtype="fp16", weight_on_input=True),
    *on_gpu(
        [
            Case(LayerShape(4, 2, 320, 576), 5, format="w4a4", dtype="fp16", activation="gelu_tanh"),
            Case(LayerShape(2, 2, 576, 320), 70, "hot", format="w4a4", activation="swigluoai", activation_limit=64.0),
        ]
    ),
]
every_gemm = pytest.mark.parametrize("case", GEMMS, ids=lambda case: case.id)


class Run(NamedTuple):
    """How many programs have all the tiles. On the CPU: which group goes first, and how late copies are done."""

    programs: int
    order: tuple[int, ...] = ()  # of those that multiply, store and load
    late: bool = False


ON_CPU = [Run(1, (0, 1, 2), late=True), Run(2, (2, 1, 0), late=True), Run(1, (2, 0, 1))]
RUNS = ON_CPU if INTERPRETED else [Run(programs) for programs in (1, 2, 5, 1000)]

# Of every test, and of each of its cases one after another: they run the same binaries, which a worker compiles once.
pytestmark = pytest.mark.parametrize(
    "run", RUNS, indirect=True, ids=lambda run: "-".join(map(str, [run.programs, *run.order]))
)


@pytest.fixture(autouse=True)
def run(request, monkeypatch) -> None:
    """Sets the number of programs, and what stands for the FP4 instruction, or for Gluon, where a session lacks it."""

    def counted(one: launch.Launch, grid: tuple[int, ...], **arguments):
        assert grid[0] <= request.param.programs or one.kernel not in KERNELS
        return start(one, grid, **arguments)

    start = w4a4_layer.start
    monkeypatch.setattr(w4a4_layer, "start", counted)
    monkeypatch.setattr(w4a4_layer, "resident_programs", lambda *_: request.param.programs)
    if INTERPRETED:
        from .gluon_on_cpu import Kernel

        def on_cpu(one: launch.Launch):
            found = function(one)
            return Kernel(found, request.param.order, request.param.late) if one.kernel in KERNELS else found

        function = launch.device_function
        monkeypatch.setattr(launch, "device_function", on_cpu)
    elif KNOWN and gpus.current(0).capability not in SPECIALIZED_TRITONS:
        from nvfp4_suite.kernels.device import w4a4_ring

        from .decoded_product import multiply_decoded

        monkeypatch.setattr(w4a4_ring, "multiply_blocks", multiply_decoded)


def planned(shape: LayerShape, tokens: int, gpu: Gpu = CARD, kernel: str = SPECIALIZED, **options) -> LayerPlan:
    plan = plan_layer(gpu, shape, tokens, kernel=kernel, input_scales=True, **options)
    found = {plan.launch(stage).kernel for stage in ("gate_up", "down")} & set(KERNELS)
    ks = zip(KERNELS, (shape.hidden, shape.intermediate), strict=True)
    assert found == {name for name, k in ks if kernel == SPECIALIZED and KNOWN and k % 64 == 0}
    return plan


@every_gemm
def test_down(case: GemmCase, device):
    plan = planned(LayerShape(case.experts, 1, case.n, case.k), case.rows * case.experts, dtype=case.dtype)
    form, gemms = rounding_form("w4a4", torch_dtype(case.dtype)), drawn(case)
    found = launches.down(plan, *together(gemms), torch_dtype(case.dtype), device)
    for expert, one in enumerate(gemms):
        expected = moe.down(*one.operands(), one.topk_weights.double(), form)
        judge.bitwise(found[expert :: len(gemms)], expected.to(one.dtype), case=case.id)


@pytest.mark.parametrize("activation", ["swigluoai"] if INTERPRETED else ACTIVATIONS)
@every_gemm
def test_gate_up_stores_what_the_plain_form_does(case: GemmCase, activation: str, device):
    """Of any gates, of which each device has its own exponential; of sums that are the same in any order."""
    rows, weights, routing = together(drawn(case))
    shape, tokens = LayerShape(case.experts, 1, case.k, case.n // 2), case.rows * case.experts
    sizes = [(x @ w.T * alpha).abs().amax() for x, w, alpha in (one.operands() for one in drawn(case))]
    stored = (100 / torch.stack(sizes).amax()).float().reshape(1)
    plain, found = (
        launches.gate_up(plan, rows, weights, stored, routing, device)
        for plan in (
            planned(shape, tokens, A100, DEFAULT, activation=activation),
            planned(shape, tokens, activation=activation),
        )
    )
    assert len(plain[0].unique()) > 64  # of 256 pairs of codes
    for one, other in zip(plain, found, strict=True):
        assert torch.equal(one, other), f"{(one != other).sum()} bytes of {one.numel()} differ"


@pytest.mark.parametrize("case", LAYERS)
def test_a_layer_has_the_references_bits(case: Case, device):
    plan = planned(case.shape, case.tokens, **{k: v for k, v in plan_options(case).items() if k != "input_scales"})
    judge.bitwise(run_plan(plan, case, device), expected_of(case, "w4a4"), **context_of(case))
