"""A host that is not there, for tests of how GPUs are found and leased."""

import sys

import pytest

from nvfp4_suite.ci import gpus

from . import hosts
from .fake_host import pynvml


@pytest.fixture
def host(monkeypatch, tmp_path):
    """Makes this process's NVML see the host that is given, with a folder of its own for locks."""
    monkeypatch.setitem(sys.modules, "pynvml", pynvml)
    monkeypatch.setenv("NVFP4_SUITE_LEASES", str(tmp_path / "leases"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def use(gpus: list[dict]) -> None:
        monkeypatch.setenv("FAKE_HOST", str(hosts.write(tmp_path / "host.json", gpus)))

    return use


@pytest.fixture
def host_of_two(host) -> list:
    """The devices of a host with two H200."""
    host(hosts.HOSTS["two"])
    return gpus.discover()
