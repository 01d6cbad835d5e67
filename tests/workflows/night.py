"""Results of a nightly run that never was: what each job would have left, whole and green unless a test says else."""

import json
from pathlib import Path
from xml.sax.saxutils import quoteattr

from nvfp4_suite.ci.matrix import Tree, matrix
from nvfp4_suite.ci.runners import Runner
from nvfp4_suite.ci.seed_tests import COMPILE_GATES, SEED_TESTS

FLEET = (
    Runner("h200", "NVIDIA H200", "sm_90", ("3.8.0",), 2, ("self-hosted", "sm90")),
    Runner("l40s", "NVIDIA L40S", "sm_89", ("3.8.0",), 1, ("self-hosted", "sm89")),
)
MATRIX = matrix("nightly", FLEET, Tree("2.13.0", bench=False))
DUE = [["case-1", "kernel-a"], ["case-1", "kernel-b"], ["case-2", "kernel-a"]]
PARTS = {"h200-3.8.0-1of2": DUE[:2], "h200-3.8.0-2of2": DUE[2:], "l40s-3.8.0": DUE}
NODES = sorted({part for parts in SEED_TESTS.values() for part in parts} - {COMPILE_GATES})


def case(node: str, body: str = "") -> str:
    """One test case of a JUnit record, as pytest writes it."""
    path, _, name = node.partition("::")
    group = path.removesuffix(".py").replace("/", ".")
    return f"<testcase classname={quoteattr(group)} name={quoteattr(name)}>{body}</testcase>"


def failure(message: str, text: str = "", kernel: str | None = None) -> str:
    """The body of a case that failed; with the name of a kernel, of one that a session owes."""
    due = quoteattr(str(["case-1", kernel]))
    owed = f"<properties><property name='due' value={due} /></properties>" if kernel else ""
    return f"{owed}<failure message={quoteattr(message)}>{text}</failure>"


def record(path: Path, *cases: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")


def make(folder: Path) -> Path:
    """The results of all jobs of MATRIX and of those that need no GPU."""
    record(folder / "interpreter" / "tests.xml", *(case(f"{node}[some-case]") for node in NODES))
    record(folder / "compile" / "gates.xml", case("compile-gates.triton-3.8.0.sm_90::gate_up-w4a16_gemm-bf16"))
    for job in MATRIX["include"]:
        gpu = folder / job["job"] / job["kind"].partition(" (")[0].replace(" ", "-")
        record(gpu / "junit.xml", case("tests/moe/test_random.py::test_kernel_is_within_its_bound[case-1]"))
        shard = [job["group"], job["splits"]]
        (gpu / "manifest.json").write_text(json.dumps({"shard": shard, "due": DUE, "ran": PARTS[job["job"]]}))
        (gpu / "environment.json").write_text(json.dumps({"triton": job["triton"]}))
        (gpu / "session.json").write_text(json.dumps({"problems": []}))
    for job in ("interpreter", "compile", *PARTS):
        (folder / job / "status.txt").write_text("success\n")
    return folder
