"""What the logs of compute-sanitizer say, and that a tool which sees nothing has tested nothing."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import triton

from nvfp4_suite.ci import sanitizer
from nvfp4_suite.ci.sanitizer import Finding, Known, findings, reported, verdict
from nvfp4_suite.ci.sanitizer_control import ptx

from .. import poison

# As NVIDIA's manual shows them, and older releases wrote them.
WRITE = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 2 bytes
=========     at w4a16_gemm+0x520 in gemm.py:61
=========     by thread (7,0,0) in block (3,0,0)
=========     Access to 0x7fc0e2e00100 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7fc0e2e00000 of size 256 bytes
========= ERROR SUMMARY: 1 error
"""
OLD = WRITE.replace("at w4a16_gemm+0x520 in gemm.py:61", "at 0x520 in w4a16_gemm")
RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sum_routes+0x210
=========     and Read access at sum_routes+0x140 [4 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
STRANGE = CLEAN.replace("0 errors", "2 errors")
OUT_OF_BOUNDS = Finding("Invalid __global__ write of size 2 bytes", "w4a16_gemm")


@pytest.mark.parametrize(
    ("log", "found", "count"),
    [
        (WRITE, [OUT_OF_BOUNDS], 1),
        (OLD, [OUT_OF_BOUNDS], 1),
        (RACE, [Finding("Race reported between Write access at sum_routes+0x210", "sum_routes")], 1),
        (CLEAN, [], 0),
        ("========= COMPUTE-SANITIZER\n========= Error: Device not supported\n", [], None),
    ],
)
def test_a_log_is_read(log, found, count):
    assert findings(log) == found
    assert reported(log) == count


KNOWN = Known("memcheck", "Invalid __global__ write", "w4a16_gemm", "a test's own")


@pytest.mark.parametrize(
    ("logs", "code", "baseline", "problems"),
    [
        ([CLEAN], 0, (), []),
        ([CLEAN, WRITE], 0, (), ["MEMCHECK: w4a16_gemm: Invalid __global__ write of size 2 bytes"]),
        ([WRITE, WRITE], 0, (KNOWN,), []),
        ([CLEAN], 0, (KNOWN,), ["NOT SEEN: w4a16_gemm: Invalid __global__ write; take it off the baseline"]),
        ([STRANGE], 0, (), ["MEMCHECK: 0.log counts 2 errors, of which none could be read"]),
        ([CLEAN], 1, (), ["TESTS FAILED under memcheck: exit code 1"]),
        ([], 0, (), ["UNTESTED: memcheck came to no end in any process"]),
        (["========= COMPUTE-SANITIZER"], 0, (), ["UNTESTED: memcheck came to no end in any process"]),
    ],
)
def test_a_run_is_judged(logs, code, baseline, problems):
    named = {f"{place}.log": log for place, log in enumerate(logs)}
    assert verdict("memcheck", named, code, baseline) == problems


def test_a_known_finding_of_another_tool_or_kernel_is_new():
    for other in (Known("racecheck", "Invalid", "w4a16_gemm", ""), Known("memcheck", "Invalid", "gemv", "")):
        assert not other.covers("memcheck", OUT_OF_BOUNDS)


# Stands in for the tool: writes LOG_1 for the planted fault, then LOG_2 for the tests, and runs neither.
FAKE = f"""#!{sys.executable}
import os, sys
log = sys.argv[sys.argv.index("--log-file") + 1].replace("%p", "7")
control = "nvfp4_suite.ci.sanitizer_control" in sys.argv
open(log, "w").write(os.environ["LOG_1" if control else "LOG_2"])
sys.exit(0 if control else int(os.environ.get("CODE", 0)))
"""


@pytest.mark.parametrize(
    ("logs", "code", "says"),
    [
        ((WRITE, CLEAN), 0, "memcheck: clean"),
        ((WRITE, WRITE), 1, "MEMCHECK: w4a16_gemm"),
        (
            (CLEAN, CLEAN),
            1,
            "UNTESTED: memcheck does not see a planted fault on this host: ========= COMPUTE-SANITIZER",
        ),
        (("========= Error: Device not supported", CLEAN), 1, "this host: ========= Error: Device not supported"),
    ],
)
def test_a_tool_must_see_a_planted_fault_first(logs, code, says, tmp_path, capsys):
    (tmp_path / "compute-sanitizer").write_text(FAKE)
    (tmp_path / "compute-sanitizer").chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG_1": logs[0], "LOG_2": logs[1]}
    assert sanitizer.run("memcheck", tmp_path / "artifacts", [], env) == code
    assert says in capsys.readouterr().out
    left = json.loads((tmp_path / "artifacts" / sanitizer.RECORD).read_text())
    assert left["tool"] == "memcheck" and (says in "\n".join(left["problems"]) or not code)


def test_without_the_tool_nothing_was_tested(tmp_path, capsys):
    assert sanitizer.run("memcheck", tmp_path, [], {"PATH": str(tmp_path)}) == 1
    assert "UNTESTED: memcheck: compute-sanitizer is not on the PATH" in capsys.readouterr().out


def test_under_a_tool_an_allocation_ends_with_its_buffer(monkeypatch):
    """Margins would be part of it, and a read of them no fault."""
    monkeypatch.setattr(poison, "_MARGIN", 0)
    with poison.poisoned_allocations():
        out = torch.empty(64)
    assert out.isnan().all() and out.untyped_storage().nbytes() == 64 * 4


@pytest.mark.parametrize("tool", sanitizer.TOOLS)
def test_the_planted_faults_are_in_the_machine_code(tool, tmp_path):
    """The assembler could do away with a read that nobody needs, or order it."""
    (tmp_path / "planted.ptx").write_text(ptx(tool))
    tools = f"{os.path.dirname(triton.__file__)}/backends/nvidia/bin"
    cubin = str(tmp_path / "planted.cubin")
    subprocess.run([f"{tools}/ptxas", "-arch=sm_90", str(tmp_path / "planted.ptx"), "-o", cubin], check=True)
    code = subprocess.run([f"{tools}/nvdisasm", "-c", cubin], check=True, capture_output=True, text=True).stdout
    if tool == "memcheck":
        assert "STG" in code and "+0x100]" in code  # 64 words are 0x100 bytes
    else:
        assert "STS" in code and "LDS" in code and "BAR.SYNC" not in code


@pytest.mark.parametrize(
    ("rest", "named"),
    [
        ([], False),
        (["-n", "8", "-q"], False),  # options alone do not widen the run to every test
        (["tests/moe"], True),
        (["-q", "tests/moe/test_random.py::test_layer"], True),
    ],
)
def test_options_alone_leave_the_choice_of_tests(rest, named, tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(
        sanitizer, "_under", lambda tool, folder, command, *_, **__: (commands.append(command), ({}, 0))[1]
    )
    sanitizer._run("memcheck", tmp_path, rest, {})
    assert all(one in commands[0] for one in rest)
    assert [one for one in commands[0] if one in sanitizer.CASES] == ([] if named else list(sanitizer.CASES))


CRASHES = """#!/bin/sh
sleep 60 &
echo $! > "$PID"
kill -SEGV $$
"""


def test_tests_that_hang_before_the_first_are_ended(tmp_path, monkeypatch):
    (tmp_path / "compute-sanitizer").write_text("#!/bin/sh\nsleep 60\n")
    (tmp_path / "compute-sanitizer").chmod(0o755)
    monkeypatch.setattr(sanitizer, "LIMIT", 0.5)
    problems = sanitizer._run("racecheck", tmp_path / "artifacts", [], os.environ | {"PATH": f"{tmp_path}:/usr/bin"})
    assert "UNTESTED: racecheck came to no end in any process" in problems


def test_a_tool_that_crashes_leaves_no_tests_behind(tmp_path):
    (tmp_path / "compute-sanitizer").write_text(CRASHES)
    (tmp_path / "compute-sanitizer").chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PID": str(tmp_path / "pid")}
    problems = sanitizer._run("memcheck", tmp_path / "artifacts", [], env)
    assert "TESTS FAILED under memcheck: exit code -11" in problems
    left = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    ends = time.monotonic() + 10
    while left.exists() and left.read_text().split()[2] != "Z":  # dead, perhaps not yet collected by init
        assert time.monotonic() < ends, "the child still sleeps"
