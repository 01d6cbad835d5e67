"""Which parameters a session's engine is given, decided while tests are collected: nothing is skipped later."""

import os

from nvfp4_suite.contract import gpus
from nvfp4_suite.contract.case import Case

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # set by conftest before any test module is imported


def on_gpu(values: list) -> list:
    """`values` for a GPU; none of them for the interpreter, where they would take minutes."""
    return [] if INTERPRETED else values


def runnable(cases: tuple[Case, ...]) -> list[Case]:
    """All cases on a GPU; those of the tiers smoke and ci in the interpreter."""
    return [case for case in cases if case.tier != "all" or not INTERPRETED]


def can_run_here(gpu: gpus.Gpu) -> bool:
    """Whether this session can execute plans made for `gpu`: pointers to e4m3 need a GPU that has the format."""
    return INTERPRETED or not gpus.architecture(gpu).native_e4m3 or gpus.architecture(gpus.current(0)).native_e4m3
