"""A host with GPUs that are not there, and a tree in which the golden tool may record."""

from collections.abc import Callable

import pytest

from nvfp4_suite.cases import layers
from nvfp4_suite.ci import exact, golden, golden_work, leases, provenance, recorded, recording
from nvfp4_suite.ci.recording import Engine

from ..ci.conftest import host  # noqa: F401  (a fixture)
from ..ci.hosts import HOSTS
from . import processes
from .tool import CASES, COMMIT, REAL, SOURCES, Runs


@pytest.fixture
def gpus(host, monkeypatch):  # noqa: F811
    """Makes this host one of tests/ci/hosts.py with a process on each GPU, which `start` makes one of the engine."""

    def use(name: str, fault: str = "", start: Callable[[str], Engine] = processes.made_up) -> None:
        host(HOSTS[name])
        monkeypatch.setattr(recording, "start", start)
        monkeypatch.setattr(leases, "cores", lambda: len(HOSTS[name]))
        monkeypatch.setenv(processes.FAULTS, fault)

    return use


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A tree in which recording is allowed, with three cases and a real-valued one, and no golden file yet."""
    folder = tmp_path / "golden"
    (folder / "recorded").mkdir(parents=True)
    for schema in (exact.SCHEMA, f"recorded/{recorded.SCHEMA}"):
        (folder / schema).write_bytes((golden.GOLDEN.parent / schema).read_bytes())
    tables = {"ORDERFREE": CASES, "RANDOM": REAL, "LONG": (), "ALL": CASES + REAL}
    for name, cases in tables.items():
        monkeypatch.setattr(layers, name, cases)
    monkeypatch.setattr(golden, "ROOT", tmp_path)
    monkeypatch.setattr(golden, "GOLDEN", folder / "exact.json")
    monkeypatch.setattr(provenance, "clean_commit", lambda root: COMMIT)
    monkeypatch.setattr(provenance, "committed_entries", lambda root, path: set())
    monkeypatch.setattr(provenance, "sources_digest", lambda root: SOURCES)
    monkeypatch.delenv("CI", raising=False)
    return folder / "exact.json"


@pytest.fixture
def engine(monkeypatch):
    """Sets what engines give from here on."""

    def use(*digests: dict[str, str], **more) -> Runs:
        made_up = Runs(*digests, **more)
        monkeypatch.setattr(golden_work, "runs", made_up)
        return made_up

    return use
