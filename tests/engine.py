"""Which parameters a session's engine is given, decided while tests are collected: nothing is skipped later."""

import os

from nvfp4_suite.cases.layers import ATOMICS
from nvfp4_suite.contract import gpus
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.kernel import Kernel
from nvfp4_suite.contract.shapes import LayerShape as Shape
from nvfp4_suite.kernels import w4a4
from nvfp4_suite.kernels.variants import DEFAULT, VARIANTS

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # set by conftest before any test module is imported

# Kernels that are kept to be compared with the default, from which their GEMMs alone differ, and what the interpreter
# runs of them. On a GPU they run every case.
COMPARED = frozenset(VARIANTS) - {DEFAULT}
COMPARED_CASES = (
    Case(Shape(4, 2, 48, 80), 5),
    Case(Shape(4, 2, 272, 80), 4),
    Case(Shape(3, 2, 64, 64), 5, dtype="fp16"),
    Case(Shape(3, 3, 128, 32), 4),
    Case(Shape(4, 2, 48, 80), 8, "dropped"),
    Case(Shape(4, 2, 48, 80), 5, weight_on_input=True, dtype="fp16"),
    Case(Shape(2, 1, 48, 16), 65, "hot", dtype="fp16"),
    Case(Shape(4, 2, 80, 48), 5, "twice", inputs="random", dtype="fp16"),
    Case(Shape(3, 2, 48, 32), 5, inputs="random"),  # tests/moe/test_edges.py
)

# Our W4A4 kernels take the interpreter long: the cases that it leaves to a GPU. The table W4A4 has the like of them.
LEFT_TO_GPU = tuple(case for case in ATOMICS if case.format == "w4a4")


def on_gpu(values: list) -> list:
    """`values` for a GPU; none of them for the interpreter, where they would take minutes."""
    return [] if INTERPRETED else values


def runnable(cases: tuple[Case, ...]) -> list[Case]:
    """All cases on a GPU; those of the tiers smoke and ci in the interpreter."""
    return [case for case in cases if case.tier != "all" or not INTERPRETED]


def can_run_here(gpu: gpus.Gpu) -> bool:
    """Whether this session can execute plans made for `gpu`: pointers to e4m3 need a GPU that has the format."""
    return INTERPRETED or not gpus.architecture(gpu).native_e4m3 or gpus.architecture(gpus.current(0)).native_e4m3


def runs_here(kernel: Kernel, case: Case | None = None) -> bool:
    """Whether this session runs `case` (None: one of no table) through `kernel`, which may not run here at all."""
    if INTERPRETED:
        chosen = kernel.name not in COMPARED or case in COMPARED_CASES
        left = kernel.name in w4a4.FORMS and case in LEFT_TO_GPU
        return kernel.promise.interpreted and chosen and not left
    return kernel.promise.capabilities is None or gpus.current(0).capability in kernel.promise.capabilities
