"""Many processes: each fresh, each on its own GPU, and what becomes of the rest when one of them ends."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nvfp4_suite.cases.layers import ALL, ORDERFREE
from nvfp4_suite.ci import golden_due, golden_process, golden_record, golden_work, outcomes, provenance, recording
from nvfp4_suite.ci.golden_due import Task
from nvfp4_suite.ci.golden_process import Process
from nvfp4_suite.ci.outcomes import Outcome, Refused
from nvfp4_suite.ci.recording import Engine
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.kernel import Promise
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import registry
from nvfp4_suite.kernels.registry import PlannedKernel

from . import pretend, processes

NAME = "prefill_w4a16"
SMALL = Case(LayerShape(2, 1, 16, 16), 3)
REAL = Case(LayerShape(2, 1, 16, 32), 3, inputs="random")
EXACT_TASK, REAL_TASK = (Task(case, "w4a16", NAME) for case in (SMALL, REAL))


@pytest.fixture
def one_kernel(monkeypatch):
    """Of the registered kernels this process knows the default alone; others, which import it anew, all."""
    monkeypatch.setattr(registry, "KERNELS", {NAME: PlannedKernel(NAME, Promise())})


def test_both_kinds_come_from_the_gpus_of_a_host(gpus, one_kernel):
    gpus("two", start=pretend.start)
    (run,) = golden_work.runs("gpu", (SMALL, REAL), 1)
    assert (run.engine.name, run.engine.speed, run.engine.facts) == ("sm_90", "data center", processes.GPU)
    assert set(run.outcomes) == {EXACT_TASK, REAL_TASK}
    assert run.outcomes[EXACT_TASK] == recording.outcome(
        Engine("reference", "cpu", {}), replace(EXACT_TASK, kernel=None)
    )
    assert run.outcomes[REAL_TASK].digest and not run.outcomes[REAL_TASK].problem
    assert run.outcomes[REAL_TASK].plan.startswith("kernel=prefill_w4a16 launches=")


def test_a_second_run_gives_each_output_to_another_gpu(gpus, one_kernel, capfd):
    gpus("two")
    first, second = golden_work.runs("gpu", (SMALL, REAL), 2)
    assert first == second
    lines = [line for line in capfd.readouterr().err.splitlines() if f"by {NAME} ok" in line]
    assert len(lines) == 4
    for task in (EXACT_TASK, REAL_TASK):
        mine = [line for line in lines if str(task) in line]
        assert {gpu for gpu in ("GPU-0", "GPU-1") for line in mine if gpu in line} == {"GPU-0", "GPU-1"}, lines


def test_a_digest_that_differs_between_two_gpus_is_unstable(gpus, one_kernel):
    gpus("two", "GPU-1=varies")
    first, second = golden_work.runs("gpu", (REAL,), 2)
    good, lines = outcomes.agreed(golden_record.recorded_of(first), golden_record.recorded_of(second))
    assert good == {} and f"/{NAME}/data center varies: " in lines[0]


@pytest.mark.parametrize(
    ("fault", "problem"),
    [("=dies", "its process died, with exit code -9"), ("=fails", "RuntimeError: CUDA error in process")],
)
def test_a_process_that_dies_or_fails_costs_its_output_alone(gpus, one_kernel, fault, problem):
    """The next output is another process's, as a CUDA context may be dead after an error."""
    gpus("one", fault)
    (run,) = golden_work.runs("gpu", (SMALL, REAL), 1)
    assert set(run.outcomes) == {EXACT_TASK, REAL_TASK}
    assert all(outcome.digest is None and problem in outcome.problem for outcome in run.outcomes.values())
    if fault == "=fails":
        assert len({outcome.problem for outcome in run.outcomes.values()}) == 2


def test_a_process_without_an_answer_is_ended(gpus, monkeypatch):
    gpus("one", "=sleeps")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-0")
    process = Process("gpu", None, recording.start)
    monkeypatch.setattr(golden_process, "SECONDS", 0.5)
    try:
        assert process.outcome(EXACT_TASK, "") == Outcome(problem="no answer in 0.5 s: a kernel that hangs?")
    finally:
        process.end()
    assert not process._process.is_alive()


def test_every_run_has_processes_and_caches_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(recording, "start", processes.surroundings)
    found = [run.outcomes for run in golden_work.runs("reference", (SMALL,), 2)]
    found += [golden_work.runs("reference", (SMALL,), 1, cache=str(tmp_path))[0].outcomes]
    pids, caches = zip(*[outcome.digest.split(" ") for one in found for outcome in one.values()], strict=True)
    assert len({*pids, str(os.getpid())}) == 4
    assert len(set(caches)) == 3 and caches[2] == str(tmp_path / "reference-bf16-0")


def test_the_reference_has_a_process_too(one_kernel):
    (run,) = golden_work.runs("reference", (SMALL,), 1)
    task = Task(SMALL, "w4a16")
    assert run.outcomes == {task: recording.outcome(Engine("reference", "cpu", {}), task)}
    assert run.engine == Engine("reference", "cpu", provenance.provenance("reference"))


def test_processes_that_are_not_alike_are_refused(monkeypatch):
    monkeypatch.setattr(recording, "start", processes.unlike)
    monkeypatch.setattr("nvfp4_suite.ci.leases.cores", lambda: 2)
    with pytest.raises(Refused, match="all processes should be alike"):
        golden_work.runs("reference", (SMALL, replace(SMALL, dtype="fp16")), 1)


def test_a_host_without_a_gpu_and_one_of_two_kinds_are_refused(gpus, monkeypatch):
    gpus("mixed")
    with pytest.raises(Refused, match=r"has GPUs of 2 kinds, .*: CUDA_VISIBLE_DEVICES chooses"):
        golden_work.runs("gpu", (SMALL,), 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(Refused, match=r"needs a CUDA GPU.*; --engine reference needs none"):
        golden_work.runs("gpu", (SMALL,), 1)


def test_a_process_that_does_not_start_is_refused(monkeypatch):
    monkeypatch.setenv("TRITON_DEFAULT_BACKEND", "other")
    with pytest.raises(Refused, match=r"does not start: (TRITON_INTERPRET|TRITON_DEFAULT_BACKEND) is set"):
        Process("gpu", None, recording.start)


ORPHAN = """
import sys
from nvfp4_suite.ci.golden_process import Process
from tests.golden import processes
if __name__ == "__main__":
    process = Process("reference", None, processes.made_up)
    print(process._process.pid, flush=True)
    sys.stdin.read()
"""


def test_processes_end_with_a_recorder_that_is_killed(tmp_path):
    (tmp_path / "orphan.py").write_text(ORPHAN)
    command = [sys.executable, tmp_path / "orphan.py"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
    while Path(f"/proc/{child}/cmdline").exists() and Path(f"/proc/{child}/cmdline").read_text():
        time.sleep(0.05)  # what is left of a process that nobody waits for has no command line


def test_a_share_has_one_kernel_and_dtype_and_long_ones_come_first():
    tasks = golden_due.tasks("sm_90", ALL)
    shares = golden_work.shares(tasks)
    assert sorted(map(str, tasks)) == sorted(str(task) for share in shares for task in share.tasks)
    for share in shares:
        assert 1 <= len(share.tasks) <= golden_work.MOST
        assert len({(task.kernel, task.case.dtype) for task in share.tasks}) == 1
    tiers = ["all" in {task.case.tier for task in share.tasks} for share in shares]
    assert tiers == sorted(tiers, reverse=True) and tiers[0] and len({share.folder for share in shares}) == len(shares)


def test_kernels_of_one_case_have_one_outcome():
    exact = [Task(ORDERFREE[0], "w4a16", name) for name in ("a", "b")]

    def joined(*found: Outcome) -> Outcome:
        run = golden_work.Run(Engine("sm_90", "cuda:0", {}), dict(zip(exact, found, strict=True)))
        (outcome,) = golden_record.exact_of(run).values()
        return outcome

    assert joined(Outcome("x"), Outcome("x")) == Outcome("x")
    assert joined(Outcome("x"), Outcome("y")) == Outcome(problem="b gives y, but others x")
    assert joined(Outcome("x"), Outcome(problem="wrong")).problem == "b: wrong"
    assert joined(Outcome(problem="wrong"), Outcome("x")).problem == "a: wrong"
