"""Kernels of the registry that are there for one test. Triton is imported late: the engine must be settled before."""

import pytest


@pytest.fixture
def register(monkeypatch):
    """Puts kernels at the end of the registry."""
    from nvfp4_suite.kernels.registry import KERNELS

    def add(*kernels):
        for one in kernels:
            monkeypatch.setitem(KERNELS, one.name, one)

    return add


@pytest.fixture
def right(register):
    """Two right kernels, "right" and "also_right"."""
    from . import quick

    register(quick.kernel("right"), quick.kernel("also_right"))
