"""No pull request reaches a GPU, and the workflows' other rules: they hold here, and each planted violation is seen."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nvfp4_suite.ci import workflow_rules

from ..meta.tree import ROOT

WORKFLOWS = ROOT / ".github" / "workflows"
CHECKOUT = "actions/checkout@de0fac2e4500dabe0009e67214ff5f5447ce83dd # v6.0.2"


def test_they_hold_here():
    assert workflow_rules.problems(WORKFLOWS) == []


def test_the_jobs_that_reach_a_gpu_are_these():
    found = workflow_rules.read(WORKFLOWS)
    jobs = {(name, job) for name, workflow in found.items() for job, of in workflow["jobs"].items() if reaches(of)}
    assert jobs == {("nightly.yml", "gpu"), ("bisect.yml", "bisect")}


def test_a_nightly_run_compiles_all_launches_by_every_triton():
    steps = workflow_rules.read(WORKFLOWS)["nightly.yml"]["jobs"]["compile"]["steps"]
    (command,) = (step["run"] for step in steps if "compile-gates" in step.get("run", ""))
    assert "compile-gates -- --all --triton all " in command


reaches = workflow_rules.reaches_gpu


@pytest.fixture
def planted(tmp_path):
    """What the rules say of the workflows after `old` has become `new` in one of them, or with another one added."""

    def change(file: str, old: str, new: str) -> list[str]:
        folder = shutil.copytree(WORKFLOWS, tmp_path / "workflows")
        text = (folder / file).read_text() if old else ""
        assert not old or text.count(old) >= 1, f"{old!r} is not in {file}"
        (folder / file).write_text(text.replace(old, new, 1) if old else new)
        return workflow_rules.problems(folder)

    return change


_STARTS = {
    "pull_request": "  pull_request:\n",
    "pull_request_target": "  pull_request_target:\n    types: [labeled]\n",
    "a comment": "  issue_comment:\n",
    "a run that a pull request started": "  workflow_run:\n    workflows: [pull request]\n",
    "a push": "  push:\n",
    "a workflow that calls it": "  workflow_call:\n",
}


@pytest.mark.parametrize("start", _STARTS.values(), ids=_STARTS)
def test_nothing_else_starts_a_job_on_a_gpu(start, planted):
    event = start.split(":")[0].strip()
    problems = planted("nightly.yml", "  workflow_dispatch:\n", f"{start}  workflow_dispatch:\n")
    assert problems == [f"nightly.yml: gpu: may reach a GPU, but is started by {event}"]


_RUNS_ON = {
    "a label": "runs-on: [self-hosted, linux, x64, gpu, sm90]",
    "a label beside GitHub's": "runs-on: [ubuntu-24.04, gpu]",
    "a label of a matrix": "runs-on: ${{ matrix.labels }}",
    "a label of a matrix in JSON": "runs-on: ${{ fromJSON(needs.matrix.outputs.matrix).include[0].labels }}",
    "a variable": "runs-on: ${{ vars.RUNNER || 'ubuntu-24.04' }}",
    "a label behind an expression": "runs-on: [ubuntu-24.04, '${{ matrix.gpu }}']",
    "a group": "runs-on: {group: gpus}",
    "a group and a label": "runs-on: {group: gpus, labels: ubuntu-24.04}",
}


@pytest.mark.parametrize("runs_on", _RUNS_ON.values(), ids=_RUNS_ON)
def test_a_pull_request_reaches_no_label_of_a_gpu(runs_on, planted):
    problems = planted("pr.yml", "runs-on: ubuntu-24.04", runs_on)
    assert "pr.yml: session: may reach a GPU, but is started by pull_request, push" in problems


@pytest.mark.parametrize(
    "called", ["./.github/workflows/nightly.yml", "else/where/.github/workflows/gpu.yml@0123456789abcdef0123"]
)
@pytest.mark.parametrize("on", ["pull_request", "[push, pull_request_target]", "{pull_request: {branches: [main]}}"])
def test_a_pull_request_reaches_no_gpu_by_calling_a_workflow(called, on, planted):
    text = f"on: {on}\npermissions: {{}}\njobs:\n  call:\n    uses: {called}\n"
    problems = planted("call.yaml", "", text)
    assert any(problem.startswith("call.yaml: call: may reach a GPU, but is started by p") for problem in problems)


_VIOLATIONS = {
    "an action by its tag": (CHECKOUT, "actions/checkout@v6", "actions/checkout@v6 should be actions/checkout@de0f"),
    "an action by a fork's commit": (
        CHECKOUT,
        f"actions/checkout@{'0123456789' * 4} # v6.0.2",
        f"actions/checkout@{'0123456789' * 4} should be actions/checkout@de0f",
    ),
    "an action of a fork": (CHECKOUT, CHECKOUT.replace("actions/", "acti0ns/", 1), "should be one of actions/checkout"),
    "an action that says another version": (CHECKOUT, CHECKOUT.replace("v6.0.2", "v6.0.1"), "should be actions/check"),
    "an action of this tree": (CHECKOUT, "./.github/actions/own", "should name an action and its commit"),
    "a missing timeout": ("    timeout-minutes: 180\n", "", "nightly.yml: gpu: timeout-minutes is missing"),
    "permissions for all": ("permissions: {}", "permissions: read-all", "permissions should be {}"),
    "a right to write on a runner of ours": (
        "timeout-minutes: 180\n    permissions:\n      contents: read",
        "timeout-minutes: 180\n    permissions:\n      contents: write",
        "gpu: permissions is {'contents': 'write'}, but should be contents: read on a runner of ours",
    ),
    "no word of permissions on a runner of ours": (
        "timeout-minutes: 180\n    permissions:\n      contents: read",
        "timeout-minutes: 180",
        "gpu: permissions is None, but should be contents: read",
    ),
    "a secret on a runner of ours": (
        "      KIND: ${{ matrix.kind }}",
        "      KIND: ${{ secrets.KIND }}",
        "gpu: should see no secret",
    ),
    "an expression in a command": (
        '--expect "$KIND"',
        '--expect "${{ matrix.kind }}"',
        "an expression in `nox -s gpus",
    ),
    "credentials that stay": ("persist-credentials: false", "persist-credentials: true", "should have persist-cred"),
    "credentials by default": ("          persist-credentials: false", "          clean: true", "should have persist"),
    "a ref to check out": (
        "persist-credentials: false",
        "persist-credentials: false\n          ref: ${{ inputs.runner }}",
        "checkout should name no ref",
    ),
    "another repository": (
        "persist-credentials: false",
        "persist-credentials: false\n          repository: some/fork",
        "checkout should name no ref and no repository",
    ),
    "a cache": (
        "      - name: Discover\n",
        f"      - uses: actions/cache@{'0' * 40} # v4\n      - name: Discover\n",
        "there should be no cache",
    ),
    "a cache of an action": (
        "persist-credentials: false",
        "persist-credentials: false\n          cache: pip",
        "there should be no cache",
    ),
    "any branch": (
        f"    if: {workflow_rules.GUARDS[1]}\n",
        "",
        "gpu: may reach a GPU, but from any branch",
    ),
    "another question than that for the branch": (
        workflow_rules.DEFAULT_BRANCH,
        workflow_rules.DEFAULT_BRANCH.replace("==", "!="),
        "gpu: may reach a GPU, but from any branch",
    ),
    "a job that runs whatever became of those that it needs": (
        "    needs: matrix\n    runs-on: ${{ matrix.labels }}",
        "    needs: matrix\n    if: always()\n    runs-on: ${{ matrix.labels }}",
        "gpu: may reach a GPU, but from any branch",
    ),
    "a job that needs nobody who asks for the branch": (
        "    needs: matrix\n    runs-on: ${{ matrix.labels }}",
        "    runs-on: ${{ matrix.labels }}",
        "gpu: may reach a GPU, but from any branch",
    ),
}


@pytest.mark.parametrize(("old", "new", "problem"), _VIOLATIONS.values(), ids=_VIOLATIONS)
def test_a_violation_is_named(old, new, problem, planted):
    assert any(problem in found for found in planted("nightly.yml", old, new))


# The hook that a runner calls before each job


@pytest.fixture
def hook(tmp_path):
    """The hook's exit code and words for a job of o/r, on a runner that is set up for o/r's branch main."""
    path = shutil.copy(ROOT / "ci" / "job_started.sh", tmp_path)
    (tmp_path / "repository").write_text("o/r main\n")

    def run(**changes: str) -> tuple[int, str]:
        variables = {"REPOSITORY": "o/r", "REF": "refs/heads/main", "EVENT_NAME": "schedule"} | changes
        variables = {"WORKFLOW_REF": f"o/r/.github/workflows/nightly.yml@{variables['REF']}"} | variables
        env = {f"GITHUB_{name}": value for name, value in variables.items() if value} | {"PATH": os.environ["PATH"]}
        child = subprocess.run(["bash", "-e", path], env=env, capture_output=True, text=True)
        return child.returncode, child.stdout

    run.folder = tmp_path
    return run


@pytest.mark.parametrize("file", ["nightly.yml", "bisect.yml"])
@pytest.mark.parametrize("event", ["schedule", "workflow_dispatch"])
def test_the_hook_lets_the_default_branchs_jobs_begin(hook, event, file):
    assert hook(EVENT_NAME=event, WORKFLOW_REF=f"o/r/.github/workflows/{file}@refs/heads/main") == (0, "")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"EVENT_NAME": "pull_request"}, "the event is pull_request"),
        ({"EVENT_NAME": "pull_request_target"}, "the event is pull_request_target"),
        ({"EVENT_NAME": "push"}, "the event is push"),
        ({"EVENT_NAME": ""}, "the event is unknown"),
        ({"REPOSITORY": "fork/r"}, "the repository is fork/r"),
        ({"REPOSITORY": ""}, "the repository is unknown"),
        ({"REF": "refs/heads/main2"}, "the ref is refs/heads/main2"),
        ({"REF": "refs/pull/7/merge"}, "the ref is refs/pull/7/merge"),
        ({"WORKFLOW_REF": "o/r/.github/workflows/pr.yml@refs/heads/main"}, "the workflow is o/r/.github/workflows/pr"),
        (
            {"WORKFLOW_REF": "o/r/.github/workflows/nightly.yml@refs/heads/x"},
            "the workflow is o/r/.github/workflows/ni",
        ),
        ({"WORKFLOW_REF": ""}, "the workflow is unknown"),
    ],
)
def test_the_hook_refuses_any_other_job(hook, changes, reason):
    code, words = hook(**changes)
    assert code == 1 and f"this runner takes no such job: {reason}" in words


@pytest.mark.parametrize("text", [None, "", "o/r", "\n"])
def test_the_hook_refuses_all_where_it_is_not_set_up(hook, text):
    (hook.folder / "repository").unlink()
    if text is not None:
        (hook.folder / "repository").write_text(text)
    assert hook()[0] != 0


def test_the_hooks_workflows_are_those_that_reach_a_gpu():
    text = (ROOT / "ci" / "job_started.sh").read_text()
    named = {name for name in os.listdir(WORKFLOWS) if f"/{name}@" in text}
    assert named == {
        Path(name).name
        for name, of in workflow_rules.read(WORKFLOWS).items()
        if any(reaches(job) for job in of["jobs"].values())
    }
