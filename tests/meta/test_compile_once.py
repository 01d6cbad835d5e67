"""Whether processes that share a cache of compiled kernels compile each once: with Triton's compiler, without a GPU."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .tree import ROOT, run_python

# Compiles a kernel for an H200, and prints whether it found it compiled.
KERNEL = """
import triton, triton.language as tl
@triton.jit
def plus(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, tl.load(x + at) + 1)
"""
COMPILING = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from kernel import plus
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tests import compile_once
compile_once.start()
def told(cache_hit, **_): print(cache_hit)
triton.knobs.compilation.listener = told
Path(sys.argv[1], f"ready {sys.argv[2]}").touch()
while len(list(Path(sys.argv[1]).glob("ready *"))) < int(sys.argv[3]): time.sleep(0.01)
signature = {"x": "*fp32", "y": "*fp32", "N": "constexpr"}
binary = triton.compile(ASTSource(plus, signature, {(2,): 128}), target=GPUTarget("cuda", 90, 32))
assert len(binary.asm["cubin"]) > 0
Path(sys.argv[1], f"done {sys.argv[2]}").touch()
while len(list(Path(sys.argv[1]).glob("done *"))) < int(sys.argv[3]): time.sleep(0.01)
"""
# Two steps of a compilation by hand, between which something happens.
BEGINNING = """
import os, sys, time
from pathlib import Path
from tests.compile_once import CompileOnce
entry = CompileOnce("k" * 64)
found = entry.get_group("kernel.json")
print(found if found is None else Path(found["kernel.json"]).read_text(), flush=True)
"""
FINISHING = """
entry.put_group("kernel.json", {"kernel.json": entry.put("whole", "kernel.json")})
"""


@pytest.fixture
def begun(tmp_path):
    """Starts `python` on `source`, with the cache that this test's processes share; they end with the test."""
    children = []

    def start(source: str, *arguments: str) -> subprocess.Popen:
        env = {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
        command = [sys.executable, "-c", source, *arguments]
        children.append(subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.communicate()


def test_processes_that_need_a_kernel_at_once_compile_it_once(begun, tmp_path):
    (tmp_path / "kernel.py").write_text(KERNEL)
    children = [begun(COMPILING, str(tmp_path), str(number), "3") for number in range(3)]
    hits = [child.communicate(timeout=120)[0].strip() for child in children]
    assert sorted(hits) == ["False", "True", "True"]


def test_what_a_killed_process_began_is_compiled_anew(begun):
    first = begun(BEGINNING + 'entry.put("half", "kernel.json"); print("begun", flush=True); time.sleep(99)')
    assert [first.stdout.readline() for _ in range(2)] == ["None\n", "begun\n"]
    second = begun(BEGINNING + FINISHING)
    time.sleep(1)
    assert second.poll() is None  # it waits
    first.kill()
    assert second.communicate(timeout=60)[0] == "None\n"
    assert begun(BEGINNING).communicate(timeout=60)[0] == "whole\n"


def test_a_damaged_entry_is_compiled_anew(begun, tmp_path):
    assert begun(BEGINNING + FINISHING).communicate(timeout=60)[0] == "None\n"
    (group,) = (tmp_path / "cache").rglob("__grp__kernel.json")
    group.write_text(group.read_text()[:20])
    assert begun(BEGINNING + FINISHING).communicate(timeout=60)[0] == "None\n"
    assert "kernel.json" in json.loads(group.read_text())["child_paths"]
    Path(json.loads(group.read_text())["child_paths"]["kernel.json"]).unlink()
    assert begun(BEGINNING).communicate(timeout=60)[0] == "None\n"


def test_who_fails_to_compile_holds_nobody_up(begun):
    """Neither by the next kernel, nor by the end of the test."""
    for going_on in ('CompileOnce("m" * 64).get_group("other.json")', "CompileOnce.release()"):
        first = begun(f'{BEGINNING}{going_on}; print("went on", flush=True); time.sleep(99)')
        assert [first.stdout.readline() for _ in range(2)] == ["None\n", "went on\n"]
        assert begun(BEGINNING).communicate(timeout=60)[0] == "None\n"


def test_no_child_inherits_it():
    """A process that has another tree, or none of ours, compiles as it would without."""
    source = "import os; from tests import compile_once; compile_once.start(); print(*os.environ)"
    names = run_python("-c", source, cwd=ROOT).stdout.split()
    assert "PATH" in names and "TRITON_CACHE_MANAGER" not in names
