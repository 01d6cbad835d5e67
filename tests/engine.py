"""Which parameters a session's engine is given, decided while tests are collected: nothing is skipped later."""

import os

from nvfp4_suite.contract import gpus
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.kernel import Kernel
from nvfp4_suite.contract.shapes import LayerShape as Shape
from nvfp4_suite.kernels import decode
from nvfp4_suite.kernels.registry import KERNELS
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

# A program of the decode kernel takes the interpreter two or three times as long as one of prefill, and each of its
# routes has programs of its own. Its larger cases are left to a GPU: a route more is nothing new to it.
DECODED_ROUTES = 12


def on_gpu(values: list) -> list:
    """`values` for a GPU; none of them for the interpreter, where they would take minutes."""
    return [] if INTERPRETED else values


def runnable(cases: tuple[Case, ...]) -> list[Case]:
    """All cases on a GPU; those of the tiers smoke and ci in the interpreter."""
    return [case for case in cases if case.tier != "all" or not INTERPRETED]


def can_run_here(gpu: gpus.Gpu) -> bool:
    """Whether this session can execute plans made for `gpu`: pointers to e4m3 need a GPU that has the format."""
    return INTERPRETED or not gpus.architecture(gpu).native_e4m3 or gpus.architecture(gpus.current(0)).native_e4m3


def runs_here(kernel: str, case: Case | None = None) -> bool:
    """Whether this session runs `case` (None: one of no table) through the kernel of that name."""
    if not INTERPRETED:
        return True
    if kernel == decode.NAME:
        return case is None or case.tokens * case.shape.top_k <= DECODED_ROUTES
    return kernel not in COMPARED or case in COMPARED_CASES


def tokens_here(kernel: str, top_k: int) -> slice:
    """Those tokens of a layer's input, of no table, that this session runs through the kernel of that name."""
    few = INTERPRETED and kernel == decode.NAME
    return slice(DECODED_ROUTES // 2 // top_k if few else None)


def kernels_here() -> list[Kernel]:
    """The kernels that this session holds to what is every kernel's: those that run on its engine."""
    if INTERPRETED:
        return [one for one in KERNELS.values() if one.promise.interpreted and one.name not in COMPARED]
    capability = gpus.current(0).capability
    return [one for one in KERNELS.values() if capability in (one.promise.capabilities or [capability])]
