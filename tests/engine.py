"""Which parameters a session's engine is given, decided while tests are collected: nothing is skipped later."""

import os

from nvfp4_suite.cases.layers import ATOMICS
from nvfp4_suite.contract import gpus
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.kernel import Kernel
from nvfp4_suite.contract.shapes import LayerShape as Shape
from nvfp4_suite.kernels import decode, w4a4
from nvfp4_suite.kernels.registry import KERNELS
from nvfp4_suite.kernels.variants import DEFAULT, VARIANTS

from .moe.edges import shape_of

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
    *{Case(shape_of("odd input", kernel), 5, inputs="random") for kernel in COMPARED},
)

# A program of the decode kernel takes the interpreter two or three times as long as one of prefill, and each of its
# routes has programs of its own. Its larger cases are left to a GPU: a route more is nothing new to it.
DECODED_ROUTES = 12

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


def can_run(kernel: Kernel) -> bool:
    """Whether this session's engine can run `kernel` at all."""
    if INTERPRETED:
        return kernel.promise.interpreted
    return kernel.promise.capabilities is None or gpus.current(0).capability in kernel.promise.capabilities


def runs_here(kernel: Kernel, case: Case | None = None) -> bool:
    """Whether this session runs `case` (None: one of no table) through `kernel`."""
    return can_run(kernel) and (not INTERPRETED or _is_interpreted(kernel.name, case))


def _is_interpreted(kernel: str, case: Case | None) -> bool:
    if kernel == decode.NAME:
        return case is None or case.tokens * case.shape.top_k <= DECODED_ROUTES
    if kernel in w4a4.FORMS:
        return case not in LEFT_TO_GPU
    return kernel not in COMPARED or case in COMPARED_CASES


def tokens_here(kernel: Kernel, top_k: int) -> slice:
    """Those tokens of a layer's input, of no table, that this session runs through `kernel`."""
    few = INTERPRETED and kernel.name == decode.NAME
    return slice(DECODED_ROUTES // 2 // top_k if few else None)


def kernels_here() -> list[Kernel]:
    """The kernels that this session holds to what is every kernel's: those that run on its engine."""
    return [one for one in KERNELS.values() if can_run(one) and (not INTERPRETED or one.name not in COMPARED)]
