"""Gpu, the facts of its capability, and the GPU that a process sees."""

from dataclasses import astuple
from types import SimpleNamespace

import pytest
import torch

from nvfp4_suite.contract.gpus import (
    ARCHITECTURES,
    CATALOG,
    PORTABLE,
    PORTABLE_ARCHITECTURE,
    Gpu,
    architecture,
    current,
)


def test_portable_is_the_least_of_every_entry():
    for facts in ARCHITECTURES.values():
        assert PORTABLE_ARCHITECTURE.shared_memory <= facts.shared_memory
        assert PORTABLE_ARCHITECTURE.native_e4m3 <= facts.native_e4m3
        assert PORTABLE_ARCHITECTURE.native_fp4 <= facts.native_fp4


@pytest.mark.fault("NVIDIA/TransformerEngine#3062")
def test_shared_memory_and_native_formats():
    """Opt-in bytes per block; e4m3 conversions came with 8.9, FP4 matrix units with 10.0."""
    large, middle, small = 232_448, 166_912, 101_376
    expected = {(8, 0): middle, (8, 6): small, (8, 7): middle, (8, 9): small, (9, 0): large}
    expected |= {(10, 0): large, (10, 3): large, (11, 0): large, (12, 0): small, (12, 1): small}
    assert {capability: facts.shared_memory for capability, facts in ARCHITECTURES.items()} == expected
    for capability, facts in ARCHITECTURES.items():
        assert facts.native_e4m3 == (capability >= (8, 9))
        assert facts.native_fp4 == (capability >= (10, 0))


def test_catalog_names_are_unique_and_known():
    assert len({gpu.name for gpu in CATALOG}) == len(CATALOG)
    assert {gpu.capability for gpu in CATALOG} == set(ARCHITECTURES)


@pytest.mark.parametrize("gpu", (PORTABLE, Gpu("a future card", (13, 0)), Gpu("AMD", None, "hip", "gfx942")), ids=str)
def test_unknown_capabilities_get_the_portable_facts(gpu):
    assert architecture(gpu) == PORTABLE_ARCHITECTURE


@pytest.mark.parametrize("name", ("NVIDIA H200", "GRID H200-24Q", "NVIDIA H200 MIG 1g.18gb", ""))
def test_facts_follow_the_capability_not_the_name(name):
    assert architecture(Gpu(name, (9, 0))) == ARCHITECTURES[9, 0]


def test_bad_backends():
    with pytest.raises(ValueError, match="backend is 'xpu', but should be"):
        Gpu("x", None, "xpu")
    for backend, arch in (("hip", None), ("cuda", "gfx942")):
        with pytest.raises(ValueError, match=f"arch is {arch!r}, but goes with backend 'hip' and only with it"):
            Gpu("x", None, backend, arch)


@pytest.mark.fault("FlashML-org/FreeToken#48")
def test_current_asks_each_time(monkeypatch):
    """A process may hold cards of several kinds, and bind its own late (FreeToken#48)."""
    cards = [("old", 8, 0), ("new", 9, 0), ("old", 8, 0)]
    answers = iter([SimpleNamespace(name=name, major=major, minor=minor) for name, major, minor in cards])
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: next(answers))
    for name, *capability in cards:
        assert astuple(current(0)) == (name, tuple(capability), "cuda", None)


def test_current_on_hip(monkeypatch):
    properties = SimpleNamespace(name="AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-", major=9, minor=4)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    assert current(0) == Gpu("AMD Instinct MI300X", None, "hip", "gfx942")
