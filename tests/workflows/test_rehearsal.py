"""The workflows' own steps, run here for a fleet that is not there: three machines, of which two share one's tests."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from nvfp4_suite.cases.layers import ALL
from nvfp4_suite.ci import workflow_rules
from nvfp4_suite.ci.seed_tests import SEED_TESTS
from nvfp4_suite.kernels.registry import KERNELS

from ..ci import hosts
from ..meta.tree import ROOT, copy
from .actions import Job, Runner
from .github import GitHub
from .test_bisect_request import commit, git

GITHUB = {"ref": "refs/heads/main", "event": {"repository": {"default_branch": "main"}}, "repository": "o/r"}
NIGHT = GITHUB | {"event_name": "schedule", "token": "a token", "event": {}}
DISPATCH = GITHUB | {"event_name": "workflow_dispatch", "token": "a token"}
LABELS = ["self-hosted", "linux", "gpu"]
FLEET = [
    {"name": "h200", "gpu": "NVIDIA H200", "architecture": "sm_90", "tritons": ["3.8.0"], "shards": 2},
    {"name": "l40s", "gpu": "NVIDIA L40S", "architecture": "sm_89", "tritons": ["3.8.0"], "shards": 1},
]
HOSTS = {"h200-3.8.0-1of2": "one", "h200-3.8.0-2of2": "two", "l40s-3.8.0": "ada"}

# What there is to test: every case by every kernel, one of which is wrong on one kind of GPU.
PLANTED = """
import pytest
import torch
from nvfp4_suite.cases.layers import ALL
from nvfp4_suite.kernels.registry import KERNELS
PAIRS = [(case, kernel) for kernel in KERNELS.values() for case in ALL if kernel.promise.takes(case)]
@pytest.mark.due
@pytest.mark.parametrize(("case", "kernel"), PAIRS)
def test_due(case, kernel, device):
    wrong = (case, kernel) == PAIRS[5] and torch.cuda.get_device_properties(0).name in WRONG
    assert not wrong, "the output differs"
"""
TEST = "tests/planted/test_planted.py::test_due"


@pytest.fixture
def rehearse(tmp_path, monkeypatch):
    """Runs a workflow of this tree, in a copy of it, on the faked fleet; its jobs, and what it left."""
    tree = copy(tmp_path / "tree")
    shutil.copytree(ROOT / ".github", tree / ".github")
    for name in ("workflows", "report"):
        shutil.copytree(ROOT / "tests" / name, tree / "tests" / name)
    (tree / "tests" / "planted").mkdir()
    (tree / "tests" / "planted" / "__init__.py").touch()
    entries = [one | {"labels": [*LABELS, one["architecture"]]} for one in FLEET]
    document = {"$schema": "runners.schema.json", "runners": entries}
    (tree / "ci" / "runners.json").write_text(json.dumps(document))
    for name, host in (hosts.HOSTS | {"ada": hosts.cards(hosts.L40S)}).items():
        hosts.write(tmp_path / f"{name}.json", host)

    def run(
        file: str, github: dict, *, wrong: str = "", changed: dict | None = None, where: dict = HOSTS, **inputs: str
    ):
        (tree / "tests" / "planted" / "test_planted.py").write_text(f"WRONG = {wrong!r}\n{PLANTED}")
        places = {job: str(tmp_path / f"{host}.json") for job, host in where.items()}
        (tmp_path / "plan.json").write_text(json.dumps({"hosts": places, "changed": changed or {}}))
        workflow = workflow_rules.read(tree / ".github" / "workflows")[file]
        found = Runner(workflow, tree, tmp_path, github, inputs, environment(tmp_path, tree))
        found.run()
        lines = (tmp_path / "calls.jsonl").read_text().splitlines()
        found.calls = [json.loads(line) for line in lines]
        return found

    run.tree, run.github = tree, GitHub(tmp_path, runs=[{"headSha": "0" * 40}])
    return run


def environment(folder: Path, tree: Path) -> dict[str, str]:
    """The variables of a machine of GitHub's or ours, whose commands are these here."""
    commands = {
        "nox": f'exec "{sys.executable}" -m tests.workflows.fake_nox "$@"',
        "pipx": '[ "$1 $2" = "run nox" ] || exit 9; shift 2; exec nox "$@"',
        "python3": '[ "$1 $2" = "-m venv" ] || exit 9; mkdir -p "$3/bin"; ln -sf /bin/true "$3/bin/python"',
    }
    for name, line in commands.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / "bin" / name).chmod(0o755)
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TRITON_", "GITHUB_"))}
    told = {"SERVER_URL": "https://github.com", "REPOSITORY": "o/r", "RUN_ID": "7", "SHA": "1" * 40, "REF_NAME": "main"}
    ours = {"REHEARSAL": str(folder), "FAKE_GITHUB": str(folder / "github.json")}
    ours |= {"NVFP4_SUITE_LEASES": str(folder / "leases"), "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    paths = os.pathsep.join([str(tree), str(tree / "tests" / "ci" / "fake_host"), str(hosts.FAKES)])
    return mine | {f"GITHUB_{name}": value for name, value in told.items()} | ours | {"PYTHONPATH": paths}


def results(run: Runner) -> dict[str, list[str]]:
    return {key: [job.result for job in jobs] for key, jobs in run.jobs.items()}


@pytest.mark.long
def test_a_red_night(rehearse):
    """One kernel is wrong on the L40S, one digest is another on the H200: two issues, and nothing else stops."""
    run = rehearse("nightly.yml", NIGHT, wrong="NVIDIA L40S", changed={"h200-3.8.0-1of2": ["case-7/w4a16"]})
    assert results(run) == {
        "matrix": ["success"],
        "gpu": ["failure", "success", "failure"],
        "interpreter": ["success"],
        "compile": ["success"],
        "night": ["failure"],
        "issues": ["success"],
    }, run.jobs["gpu"][0].log
    assert [(job.name, job.labels) for job in run.jobs["gpu"]] == [
        (f"NVIDIA H200 (sm_90), {VERSIONS}, part 1 of 2", [*LABELS, "sm_90"]),
        (f"NVIDIA H200 (sm_90), {VERSIONS}, part 2 of 2", [*LABELS, "sm_90"]),
        (f"NVIDIA L40S (sm_89), {VERSIONS}", [*LABELS, "sm_89"]),
    ]
    failed, changed = json.loads((run.artifacts / "night" / "night.json").read_text())
    kernel = next(iter(KERNELS))  # that of PAIRS[5]
    left = sorted([changed["what"], failed["what"]])
    assert left == ["golden: w4a16", f"{TEST} {kernel}"]
    log = run.jobs["night"][0].log
    assert all(f"{name}: passed in" in log for name in SEED_TESTS)
    page = (run.artifacts / "night" / "report.html").read_text()
    assert all(job in page for job in HOSTS) and kernel in page and "NVIDIA L40S" in page
    assert not {"manifest.json", "status.txt"} & set(re.findall(r"[\w.]+\.\w+", page)), "the report knows no such file"
    assert f"FAILED: {TEST} {kernel}: 1 in l40s-3.8.0" in run.summary and "runs are red" in run.summary
    assert sorted(issue["title"] for issue in rehearse.github.issues) == [
        "Nightly: golden: w4a16",
        f"Nightly: {TEST} {kernel}",
    ]
    assert_layout(run)


VERSIONS = "Triton 3.8.0, torch 2.13.0"


def assert_layout(run: Runner) -> None:
    """What a report finds, and that the two machines of one kind have run, between them, all that is due there."""
    files = {str(path.relative_to(run.artifacts)) for path in run.artifacts.rglob("*") if path.is_file()}
    session = {"junit.xml", "session.json", "environment.json", "manifest.json"}
    for job, gpu in (
        ("h200-3.8.0-1of2", "NVIDIA-H200"),
        ("h200-3.8.0-2of2", "NVIDIA-H200"),
        ("l40s-3.8.0", "NVIDIA-L40S"),
    ):
        assert {f"{job}/status.txt", *(f"{job}/{gpu}/{name}" for name in session)} <= files
    assert {"h200-3.8.0-1of2/golden.xml", "l40s-3.8.0/golden.xml"} <= files
    assert "h200-3.8.0-2of2/golden.xml" not in files
    assert {"interpreter/junit.xml", "compile/gates.xml", "compile/gate-tests.xml", "night/night.json"} <= files
    parts = [json.loads((run.artifacts / f"h200-3.8.0-{n}of2/NVIDIA-H200/manifest.json").read_text()) for n in (1, 2)]
    ran = sorted(pair for part in parts for pair in part["ran"])
    every = [case for kernel in KERNELS.values() if takes(kernel, (9, 0)) for case in ALL if kernel.promise.takes(case)]
    assert ran == parts[0]["due"] and len(ran) == len(every)


def takes(kernel, capability: tuple[int, int]) -> bool:
    return kernel.promise.capabilities is None or capability in kernel.promise.capabilities


@pytest.mark.long
def test_a_green_run_by_hand(rehearse):
    run = rehearse("nightly.yml", DISPATCH, runner="l40s", triton="", tests="smoke")
    assert results(run) == {
        "matrix": ["success"],
        "gpu": ["success"],
        "interpreter": ["success"],
        "compile": ["success"],
        "night": ["success"],
        "issues": ["skipped"],
    }, run.jobs["night"][0].log
    assert rehearse.github.issues == []
    given = next(call for call in run.calls if call[1] == "gpu-tests")
    assert {"--triton=3.8.0", "--tier=smoke", "--splits=1", "--group=1"} < set(given)
    timed = next(call for call in run.calls if call[1] == "bench")
    assert timed[2:] == ["--triton=3.8.0", "--tier=smoke", "--artifacts=artifacts/l40s-3.8.0"]


def test_a_runner_with_another_card_tests_nothing(rehearse):
    run = rehearse("nightly.yml", DISPATCH, where=HOSTS | {"l40s-3.8.0": "one"}, runner="l40s", triton="", tests="all")
    (gpu,) = run.jobs["gpu"]
    assert gpu.result == "failure" and "but should be NVIDIA L40S (sm_89)" in gpu.log
    skipped = {name for name, outcome in gpu.steps.items() if outcome == "skipped"}
    assert skipped == {"GPU tests", "Golden digests", "Bench"}
    assert run.jobs["night"][0].result == "failure"
    assert [issue["title"] for issue in rehearse.github.issues] == [
        "Nightly: NO RESULT",
        "Nightly: a session came to no end",
    ]


@pytest.mark.parametrize("file", ["nightly.yml", "bisect.yml"])
def test_no_other_branch_starts_anything(rehearse, file):
    (rehearse.tree.parent / "calls.jsonl").touch()
    run = rehearse(file, DISPATCH | {"ref": "refs/heads/mine"}, runner="l40s")
    assert {one for jobs in results(run).values() for one in jobs} == {"skipped"}


def test_an_unknown_runner_starts_nothing(rehearse):
    run = rehearse("nightly.yml", DISPATCH, runner="h100")
    assert results(run)["matrix"] == ["failure"]
    assert {one for key, jobs in results(run).items() if key != "matrix" for one in jobs} == {"skipped"}


def test_a_pull_request_runs_every_session_on_githubs_machines(rehearse):
    run = rehearse("pr.yml", GITHUB | {"event_name": "pull_request", "ref": "refs/pull/7/merge"})
    jobs: list[Job] = [job for jobs in run.jobs.values() for job in jobs]
    assert {job.result for job in jobs} == {"success"} and {job.labels for job in jobs} == {"ubuntu-24.04"}
    sessions = [call[1] for call in run.calls]
    assert sorted(sessions) == ["compile-gates"] * 3 + ["gate-tests", "lint", "matrix", "matrix", "tests"]


def test_a_bisect_goes_to_the_runner_with_what_was_looked_at(rehearse):
    git(rehearse.tree, "init", "--quiet")
    ends = [commit(rehearse.tree, name) for name in ("good", "bad")]
    case = ALL[0].id
    inputs = {"good": ends[0][:9], "bad": ends[1], "case": case, "engine": "gpu", "runner": "l40s"}
    run = rehearse("bisect.yml", DISPATCH, **inputs)
    assert results(run) == {"request": ["success"], "bisect": ["success"]}, run.jobs["request"][0].log
    assert run.jobs["bisect"][0].labels == [*LABELS, "sm_89"]
    given = ["--good", ends[0], "--bad", ends[1], "--case", case, "--engine", "gpu"]
    assert run.calls[-1][1:] == ["bisect", *given, "--artifacts", "artifacts/bisect"]


def test_a_bisect_of_what_is_refused_reaches_no_runner(rehearse):
    git(rehearse.tree, "init", "--quiet")
    commit(rehearse.tree, "one")
    run = rehearse("bisect.yml", DISPATCH, good="0" * 40, bad="HEAD", case=ALL[0].id, engine="gpu", runner="l40s")
    assert results(run) == {"request": ["failure"], "bisect": ["skipped"]}


def test_every_session_that_a_workflow_names_is_one():
    listed = (ROOT / "noxfile.py").read_text()
    text = "".join(path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml"))
    named = {*re.findall(r"nox -s ([\w-]+)", text), "lint", "tests", "gate-tests"}
    assert {name for name in named if f"def {name.replace('-', '_')}(session" not in listed} == set()
