"""The command that tests on this host's GPUs: one session for each kind, and the worst of their exit codes."""

import os
from itertools import pairwise
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from nvfp4_suite.cases.layers import ALL
from nvfp4_suite.ci import due, gpu_tests, sanitizer
from nvfp4_suite.contract.kernel import Promise
from nvfp4_suite.kernels.registry import KERNELS, PlannedKernel

from ..meta.tree import ROOT, run_python
from .hosts import FAKES, HOSTS, write


@pytest.fixture
def sessions(monkeypatch):
    """Every session that the command starts, as (CUDA_VISIBLE_DEVICES, command line); they end with `codes` in turn."""
    started, codes = [], []

    def run(command, *, env, cwd):
        assert env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] == "1"
        started.append((env["CUDA_VISIBLE_DEVICES"], command[1:]))
        return SimpleNamespace(returncode=codes.pop(0) if codes else 0)

    monkeypatch.setattr(gpu_tests.subprocess, "run", run)
    return SimpleNamespace(started=started, codes=codes)


@pytest.mark.parametrize(
    ("name", "outer", "visible"),
    [
        ("eight", None, [",".join(f"GPU-{digit * 4}-5a5a" for digit in "01234567")]),
        ("mixed", None, ["GPU-0000-5a5a", "GPU-1111-5a5a,GPU-2222-5a5a"]),
        ("mixed", "2,0,1", ["2,1", "0"]),  # by their own spelling
        ("mixed", "GPU-2", ["GPU-2"]),
        ("split", None, ["MIG-aaaa-5a5a,MIG-bbbb-5a5a", "GPU-1111-5a5a"]),
    ],
)
def test_each_kind_has_a_session_of_its_own(name, outer, visible, host, sessions, monkeypatch):
    host(HOSTS[name])
    if outer is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", outer)
    assert gpu_tests.main([]) == 0
    assert [seen for seen, _ in sessions.started] == visible


@pytest.mark.parametrize(("codes", "worst"), [([0, 1], 1), ([1, 0], 1), ([0, 0], 0)])
def test_a_failure_on_one_kind_fails_the_command_but_not_the_other_kind(codes, worst, host, sessions):
    host(HOSTS["mixed"])
    sessions.codes[:] = codes
    assert gpu_tests.main([]) == worst
    assert len(sessions.started) == 2


def test_what_the_command_does_not_know_is_pytests(host, sessions, tmp_path):
    host(HOSTS["one"])
    gpu_tests.main(["--tier", "ci", "--artifacts", str(tmp_path), "-x", "tests/moe"])
    (_, command) = sessions.started[0]
    assert command[:3] == ["-m", "pytest", "--engine=gpu"]
    assert {"--tier=ci", f"--artifacts={tmp_path / 'NVIDIA-H200'}", "--numprocesses=auto"} <= set(command)
    assert command[-2:] == ["-x", "tests/moe"]


@pytest.mark.parametrize(
    ("rest", "names"),
    [
        ([], ["xdist", "timeout", "pytest-split"]),
        (["-p", "no:pytest-split", "-pno:xdist"], ["timeout"]),  # pytest does not know their options then
    ],
)
def test_plugins_are_those_that_the_tests_need(rest, names, host, sessions, tmp_path):
    host(HOSTS["one"])
    gpu_tests.main(["--artifacts", str(tmp_path), *rest])
    (_, command) = sessions.started[0]
    loaded = [name for flag, name in pairwise(command[2:]) if flag == "-p" and not name.startswith("no:")]
    assert loaded == names


def test_a_plugin_that_is_not_installed_is_not_asked_for(monkeypatch):
    monkeypatch.setattr(gpu_tests, "find_spec", lambda module: module != "pytest_split")
    assert gpu_tests.plugins() == ["-p", "xdist", "-p", "timeout"]


def test_a_session_has_no_plugin_of_the_hosts_own(tmp_path):
    """Neither its controller nor its workers."""
    (tmp_path / "theirs-1.0.dist-info").mkdir()
    (tmp_path / "theirs-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (tmp_path / "theirs-1.0.dist-info" / "entry_points.txt").write_text("[pytest11]\ntheirs = theirs\n")
    (tmp_path / "theirs.py").write_text("raise SystemExit('theirs is loaded')\n")
    command = ["-m", "nvfp4_suite.ci.gpu_tests", "--numprocesses=2", f"--artifacts={tmp_path / 'out'}"]
    command += ["-p", "no:cacheprovider", "-k", "nothing", "tests/codec/__init__.py"]
    environment = {
        "FAKE_HOST": str(write(tmp_path / "host.json", HOSTS["two"])),
        "NVFP4_SUITE_LEASES": str(tmp_path / "leases"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(FAKES)]),
    }
    child = run_python(*command, cwd=ROOT, **environment)
    said = child.stdout + child.stderr
    assert "theirs is loaded" not in said and "2 workers [0 items]" in said, said
    child = run_python(*command, "-p", "theirs", cwd=ROOT, **environment)
    assert "theirs is loaded" in child.stdout + child.stderr, "the plugin is none"


def test_a_host_without_a_gpu_fails(host, capsys):
    host([])
    assert gpu_tests.main([]) == 1
    assert "gpu-tests needs a CUDA GPU, but NVML finds none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "tools"), [("--sanitize", ["memcheck", "racecheck"]), ("--sanitize=racecheck", ["racecheck"])]
)
def test_each_tool_has_a_session_of_its_own(asked, tools, host, monkeypatch):
    host(HOSTS["one"])
    ran = []
    monkeypatch.setattr(sanitizer, "run", lambda tool, *_: ran.append(tool) or len(ran) - 1)
    assert gpu_tests.main([asked]) == len(tools) - 1
    assert ran == tools


def test_a_case_is_due_where_its_kernel_promises_it():
    promises = {"any": Promise(), "hopper": Promise(capabilities=((9, 0),), dtypes=("fp16",))}
    w4a16 = [case for case in ALL if case.format == "w4a16"]
    every = {(case.id, "any") for case in w4a16}
    kernels = {name: PlannedKernel(name, promise) for name, promise in promises.items()}
    with patch.dict(KERNELS, kernels, clear=True):  # which keeps their order, unlike monkeypatch.delitem
        assert due.due((8, 9), "all") == every
        assert due.due((9, 0), "all") == every | {(case.id, "hopper") for case in w4a16 if case.dtype == "fp16"}
        smoke, ci = due.due((8, 9), "smoke"), due.due((8, 9), "ci")
    assert smoke == {(case.id, "any") for case in w4a16 if case.tier == "smoke"}
    assert smoke < ci < every
