"""Temporary folders: gone after their use, also those of runs that were killed, and never while they are used."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvfp4_suite.ci import gate_folders, gate_run
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.plan import plan_layer

from .trees import ROOT

LAUNCH = plan_layer(Gpu("", (9, 0)), LayerShape(256, 8, 2048, 512), 1).launch("sum_routes")


@pytest.fixture(autouse=True)
def temporary(monkeypatch, tmp_path) -> Path:
    """The temporary files of this process and of its children."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return path


@contextlib.contextmanager
def process(code: str) -> Iterator[None]:
    """A process that runs `code`, from its first line of output on, and is killed afterwards."""
    command = [sys.executable, "-c", f"from nvfp4_suite.ci import gate_folders\n{code}"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "ready\n"
            yield
        finally:
            child.kill()


def test_a_folder_is_gone_after_its_use(temporary):
    with gate_folders.folder() as path:
        assert list(temporary.iterdir()) == [path]
        (path / "file").touch()
    assert not list(temporary.iterdir())


def test_one_that_a_killed_process_left_is_removed_and_no_other(temporary):
    (temporary / "of-somebody-else").mkdir()
    with process("with gate_folders.folder():\n    print('ready', flush=True)\n    input()"):
        (path,) = temporary.glob(f"{gate_folders.PREFIX}*")
        gate_folders.remove_left_over()
        assert path.exists()
    assert path.exists()
    gate_folders.remove_left_over()
    assert [each.name for each in temporary.iterdir()] == ["of-somebody-else"]


def test_a_folder_stays_while_others_look_for_what_is_left_over():
    """Also between the moment that it is made and the one that it is locked."""
    removing = "print('ready', flush=True)\nwhile True:\n    gate_folders.remove_left_over()"
    with process(removing), process(removing):
        for _ in range(1000):
            with gate_folders.folder() as path:
                (path / "file").touch()


PTXAS = """#!/bin/sh
[ "$1" = --version ] && exec {ptxas} --version
kill -9 $PPID
"""


def test_the_run_after_one_that_was_killed_removes_what_that_left(temporary, monkeypatch, tmp_path):
    """Killed by its assembler, while there are files for it."""
    from triton import knobs

    (tmp_path / "ptxas").write_text(PTXAS.format(ptxas=knobs.nvidia.ptxas.path))
    (tmp_path / "ptxas").chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setenv("TRITON_PTXAS_PATH", str(tmp_path / "ptxas"))
        (outcome,) = gate_run.run([((9, 0), LAUNCH)], gate_run.Settings(1))
    assert "the compiler ended its process" in outcome.error
    (left,) = temporary.iterdir()
    assert list(left.glob("*.ptx"))
    (outcome,) = gate_run.run([((9, 0), LAUNCH)], gate_run.Settings(1))
    assert outcome.facts and not list(temporary.iterdir())
