"""How much work a plan is for the interpreter, which takes about as long for every step of every program. Pure."""

from ..contract.case import Case
from ..contract.gpus import PORTABLE, Gpu
from ..kernels.launch import Launch
from ..kernels.plan import KERNELS, LayerPlan, plan_layer


def plan_of(kernel: str, case: Case, gpu: Gpu = PORTABLE, triton: str = "3.8.0") -> LayerPlan | None:
    """The plan by which `kernel` computes `case` on `gpu`; None for a kernel that is not planned here."""
    if kernel not in KERNELS:
        return None
    options = {name: getattr(case, name) for name in ("dtype", "activation", "weight_on_input")}
    scales = case.format == "w4a4"
    return plan_layer(gpu, case.shape, case.tokens, triton=triton, input_scales=scales, kernel=kernel, **options)


def program_steps(plan: LayerPlan) -> int:
    """The programs of both GEMMs, each times its steps over K; a persistent program counts once for each of its tiles.

    Their grids have room for every routing of so many routes, and so do not depend on the case's own.
    """
    hidden, intermediate, total = plan.shape.hidden, plan.shape.intermediate, 0
    for stage, k, rows in (("gate_up", hidden, 2 * intermediate), ("down", intermediate, hidden)):
        if launch := plan.launch(stage):
            total += _blocks(plan) * _tiles(launch, rows) * _ceil(k, _step(launch))
    return total


def _blocks(plan: LayerPlan) -> int:
    """Programs for each of a GEMM's tiles of weight rows; see experts.routed_by."""
    routes, blocks = plan.tokens * plan.shape.top_k, plan.launch("list_blocks")
    if blocks is None:
        return routes
    block_m = blocks.constexpr("BLOCK_M")
    return (routes + min(plan.shape.experts, routes) * (block_m - 1)) // block_m


def _tiles(launch: Launch, rows: int) -> int:
    columns = rows // 2 if "ACTIVATION" in dict(launch.constexprs) else rows  # gate and up in one program
    return _ceil(columns, launch.constexpr("BLOCK_N"))


def _step(launch: Launch) -> int:
    """Elements of K that a step takes; a word has eight of them, a byte two."""
    sizes = dict(launch.constexprs)
    return 8 * sizes["WORDS"] if "WORDS" in sizes else 2 * sizes["BLOCK_KB"]


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
