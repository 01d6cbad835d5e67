"""What must hold of .github/workflows beyond what their linters see: above all, that no pull request reaches a GPU.

A job is taken to reach a GPU unless it says in so many words that it runs on GitHub's own machine: an expression, a
group of runners, a workflow that it calls may be anything. Such a job may be started by the clock, or by hand on the
default branch, and by nothing else: no event of a pull request, and no workflow that calls this one. Needs PyYAML.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from .runners import HOSTED

STARTED_BY = {"schedule", "workflow_dispatch"}  # what may start a job on a GPU
DEFAULT_BRANCH = "github.ref == format('refs/heads/{0}', github.event.repository.default_branch)"
GUARDS = (DEFAULT_BRANCH, f"github.event_name == 'schedule' || {DEFAULT_BRANCH}")  # the clock knows no other branch

# The only actions, each at the commit of its release: a tag moves, and a commit may be a fork's.
ACTIONS: dict[str, tuple[str, str]] = {
    "actions/checkout": ("de0fac2e4500dabe0009e67214ff5f5447ce83dd", "v6.0.2"),
    "actions/download-artifact": ("3e5f45b2cfb9172054b4087a40e8e0b5a5461e7c", "v8.0.1"),
    "actions/upload-artifact": ("043fb46d1a93c77aae656e7c1c64a875d1fc6a0a", "v7.0.1"),
}
_USES = re.compile(r"^\s*(?:- )?uses:\s*(\S+?)@(\S+)(?:\s+#\s*(\S+))?\s*$")

Job = dict
Workflow = dict


def read(folder: Path) -> dict[str, Workflow]:
    """The workflows in `folder` by the names of their files; every scalar is a string, "on" among them."""
    import yaml

    paths = sorted(path for path in folder.iterdir() if path.suffix in (".yml", ".yaml"))
    return {path.name: yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader) for path in paths}


def problems(folder: Path) -> list[str]:
    """All that is wrong with the workflows in `folder`, a line each."""
    found = []
    for name, workflow in read(folder).items():
        found += [f"{name}: {problem}" for problem in _of_workflow(workflow)]
        found += [f"{name}: {problem}" for problem in _of_actions((folder / name).read_text(encoding="utf-8"))]
        for job_name, job in workflow["jobs"].items():
            found += [f"{name}: {job_name}: {problem}" for problem in _of_job(job)]
    return found


def triggers(workflow: Workflow) -> set[str]:
    """What starts a workflow, in whichever of its three forms `on` says so."""
    on = workflow.get("on", [])
    return {on} if isinstance(on, str) else set(on)


def reaches_gpu(job: Job) -> bool:
    """Whether a job may run on a runner of ours."""
    return job.get("runs-on") not in (HOSTED, [HOSTED])


def _of_workflow(workflow: Workflow) -> Iterator[str]:
    if workflow.get("permissions") != {}:
        yield "permissions should be {}, and each job should say what it needs"
    jobs = workflow["jobs"]
    others = sorted(triggers(workflow) - STARTED_BY)
    for name in (name for name, job in jobs.items() if reaches_gpu(job)):
        if others:
            yield f"{name}: may reach a GPU, but is started by {', '.join(others)}"
        if not _is_guarded(name, jobs):
            yield f"{name}: may reach a GPU, but from any branch: it, or what it needs, should ask for the default"


def _is_guarded(name: str, jobs: dict[str, Job]) -> bool:
    """Whether a job asks for the default branch; one without a condition is skipped with any that it needs."""
    if "if" in jobs[name]:
        return jobs[name]["if"] in GUARDS
    needs = jobs[name].get("needs", [])
    return any(_is_guarded(one, jobs) for one in ([needs] if isinstance(needs, str) else needs))


def _of_actions(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if match := _USES.match(line):
            name, commit, version = match.groups()
            if (commit, version) != ACTIONS.get(name):
                should = "@{} # {}".format(*ACTIONS[name]) if name in ACTIONS else f" of {', '.join(ACTIONS)}"
                yield f"line {number}: {name}@{commit} should be {name if name in ACTIONS else 'one'}{should}"
        elif "uses:" in line.partition("#")[0]:
            yield f"line {number}: {line.strip()} should name an action and its commit"


def _of_job(job: Job) -> Iterator[str]:
    if "timeout-minutes" not in job:
        yield "timeout-minutes is missing"
    if reaches_gpu(job):
        if job.get("permissions", {}) != {"contents": "read"}:
            yield f"permissions is {job.get('permissions')}, but should be contents: read on a runner of ours"
        if "secrets" in str(job) or "github.token" in str(job):
            yield "should see no secret on a runner of ours"
    for step in job.get("steps", ()):
        yield from _of_step(step)


def _of_step(step: dict) -> Iterator[str]:
    given = step.get("with", {})
    if "${{" in step.get("run", ""):
        yield f"an expression in `{step['run'].splitlines()[0]}`: it should come by the environment"
    if step.get("uses", "").startswith("actions/checkout"):
        if given.get("persist-credentials") != "false":
            yield "checkout should have persist-credentials: false"
        if {"ref", "repository"} & set(given):
            yield "checkout should name no ref and no repository: it takes the commit that started the run"
    if any("cache" in word for word in (step.get("uses", ""), *given)):
        yield "there should be no cache, which another run could have written"
