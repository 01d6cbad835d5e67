"""Stands in for nox in a rehearsal, without its environments: what a session runs, or a fake of what needs a GPU.

REHEARSAL names a folder: plan.json says of each job which host it runs on and which digests changed there; every call
is a line of calls.jsonl.
"""

import json
import os
import sys
from pathlib import Path
from typing import NoReturn

FOLDER = Path(os.environ["REHEARSAL"])
JOB = Path(os.environ.get("RESULTS", ".")).name
PLAN = json.loads((FOLDER / "plan.json").read_text())
MODULES = ("gpus", "matrix", "night", "report", "issues", "bisect-request")  # that run as they are


def main(arguments: list[str]) -> int:
    flag, session, *rest = arguments
    assert flag == "-s" and rest[:1] in ([], ["--"]), arguments
    given = [one for one in rest[1:] if not one.startswith("--triton=") or session == "matrix"]
    with (FOLDER / "calls.jsonl").open("a") as file:
        file.write(json.dumps([JOB, session, *rest[1:]]) + "\n")
    if session in MODULES:
        module(session.replace("-", "_"), *given)
    if session == "gpu-tests":
        module("gpu_tests", *given, "--numprocesses=0")
    return FAKES.get(session, lambda given: 0)(given)


def module(name: str, *arguments: str) -> NoReturn:
    """Becomes one of our commands, in this tree, on the host of this job."""
    host = {"FAKE_HOST": PLAN["hosts"][JOB]} if JOB in PLAN["hosts"] else {}
    command = [sys.executable, "-m", f"nvfp4_suite.ci.{name}", *arguments]
    os.execve(sys.executable, command, os.environ | host)


def golden(given: list[str]) -> int:
    """A verification that finds the changes of the plan."""
    from nvfp4_suite.ci import golden_junit
    from nvfp4_suite.ci.outcomes import Finding
    from nvfp4_suite.ci.recording import Engine

    findings = [Finding("CHANGED", key, ("recorded 11", "found    22")) for key in PLAN["changed"].get(JOB, [])]
    path = Path(given[given.index("--junit") + 1])
    golden_junit.write(path, Engine("sm_90", "cuda", {"triton": "3.8.0"}), ["case/w4a16"], findings, "gpu")
    return 1 if findings else 0


def tests(given: list[str]) -> int:
    from .night import NODES, result_of, write_tests

    for path in (one.partition("=")[2] for one in given if one.startswith("--junitxml=")):
        write_tests(Path(path), *map(result_of, NODES))
    return 0


def compile_gates(given: list[str]) -> int:
    from .night import GATE, write_gates

    if "--junit" in given:
        write_gates(Path(given[given.index("--junit") + 1]), GATE)
    return 0


def bench(given: list[str]) -> int:
    """Takes only options that the benchmark has."""
    from nvfp4_suite.bench.__main__ import parser

    return 0 if parser().parse_args(given).artifacts else 1


FAKES = {"bench": bench, "golden": golden, "tests": tests, "gate-tests": tests, "compile-gates": compile_gates}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
