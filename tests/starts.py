"""Launches, caught wherever a module of kernels/ starts one."""

import sys
from collections.abc import Callable
from functools import partial

import pytest

PACKAGE = "nvfp4_suite.kernels."


def at_starts(patch: pytest.MonkeyPatch, instead: Callable) -> None:
    """From now on, instead(start, launch, ...) runs where a module calls start(launch, ...); `start` is that one."""
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGE) and "start" in vars(module):
            patch.setattr(module, "start", partial(instead, module.start))
