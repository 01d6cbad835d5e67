"""Results of a nightly run that never was: what each job would have left, whole and green unless a test says else."""

from dataclasses import replace
from pathlib import Path

from nvfp4_suite.ci.matrix import Tree, matrix
from nvfp4_suite.ci.runners import Runner
from nvfp4_suite.ci.seed_tests import COMPILE_GATES, SEED_TESTS

from ..report.fleet import Result, write_environment, write_json, write_junit, write_session

FLEET = (
    Runner("h200", "NVIDIA H200", "sm_90", ("3.8.0",), 2, ("self-hosted", "sm90")),
    Runner("l40s", "NVIDIA L40S", "sm_89", ("3.8.0",), 1, ("self-hosted", "sm89")),
)
MATRIX = matrix("nightly", FLEET, Tree("2.13.0", bench=False))
CAPABILITIES = {"h200": (9, 0), "l40s": (8, 9)}
DUE = [["case-1", "kernel-a"], ["case-1", "kernel-b"], ["case-2", "kernel-a"]]
PARTS = {"h200-3.8.0-1of2": DUE[:2], "h200-3.8.0-2of2": DUE[2:], "l40s-3.8.0": DUE}
NODES = sorted({part for parts in SEED_TESTS.values() for part in parts} - {COMPILE_GATES})
GATE = Result("gate_up-w4a16_gemm-bf16", group="compile-gates.triton-3.8.0.sm_90")


def result_of(node: str, failure: str | None = None, kernel: str | None = None) -> Result:
    """The test case of a node id; with an explanation, one that failed."""
    path, _, name = node.partition("::")
    return Result(name, kernel, failure, group=path.removesuffix(".py").replace("/", "."))


def write_tests(path: Path, *results: Result) -> None:
    """A record of pytest's."""
    write_junit(path, list(results))


def write_gates(path: Path, *results: Result) -> None:
    write_junit(path, list(results), "compile-gates")


def gate(name: str, function: str, repro: str) -> Result:
    """A gate that is red."""
    found = replace(GATE, name=name, properties={"function": function}, failure="16 bytes spilled")
    return replace(found, text=repro)


def make(folder: Path) -> Path:
    """The results of all jobs of MATRIX and of those that need no GPU."""
    write_session(folder / "interpreter", "interpreter")
    write_tests(folder / "interpreter" / "junit.xml", *(result_of(f"{node}[some-case]") for node in NODES))
    write_gates(folder / "compile" / "gates.xml", GATE)
    for job in MATRIX["include"]:
        gpu = folder / job["job"] / job["kind"].partition(" (")[0].replace(" ", "-")
        write_session(gpu, "gpu")
        write_environment(gpu, (job["kind"], CAPABILITIES[job["runner"]]), triton=job["triton"])
        test = f"tests/moe/test_random.py::test_kernel_is_within_its_bound[{job['job']}]"
        write_tests(gpu / "junit.xml", result_of(test))
        shard = [job["group"], job["splits"]]
        write_json(gpu / "manifest.json", {"shard": shard, "due": DUE, "ran": PARTS[job["job"]]})
    for job in ("interpreter", "compile", *PARTS):
        (folder / job / "status.txt").write_text("success\n")
    return folder
