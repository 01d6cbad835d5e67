"""Runs a workflow here as GitHub would: its jobs in order, their `run` steps in bash, their expressions, its outputs.

Only what our workflows use is known; anything else is an error, so that a rehearsal cannot pass over it. Actions are
stood in for: a checkout is the folder that the jobs share, artifacts are folders.
"""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}")
_NAME = re.compile(r"'[^']*'|[A-Za-z_][\w-]*(?:\.[\w-]+)+|\b(?:always|cancelled|success|failure|fromJSON|format)\b")


@dataclass
class Job:
    """What became of one job, or of one entry of its matrix: `result` as `needs` has it, and what its steps said."""

    name: str
    labels: object  # of the machine that it ran on
    result: str = "success"
    outputs: dict[str, str] = field(default_factory=dict)
    steps: dict[str, str] = field(default_factory=dict)  # name or command -> outcome
    log: str = ""


class Runner:
    """One run of `workflow`, in the tree `root`; `folder` is for all that GitHub would keep."""

    def __init__(self, workflow: dict, root: Path, folder: Path, github: dict, inputs: dict, env: dict):
        self.workflow, self.root, self.folder = workflow, root, folder
        self.contexts = {"github": github, "inputs": inputs}
        self.env = env
        self.artifacts = folder / "artifacts"
        self.jobs: dict[str, list[Job]] = {}
        self.summary = ""

    def run(self) -> dict[str, list[Job]]:
        """Every job by its key, each as often as its matrix says."""
        for key, job in self.workflow["jobs"].items():
            needs = [job.get("needs", [])] if isinstance(job.get("needs", []), str) else job.get("needs", [])
            known = {"needs": {one: self._needed(one) for one in needs}}
            went_well = all(one["result"] == "success" for one in known["needs"].values())
            if self._asked(job.get("if"), known, went_well):
                self.jobs[key] = [self._run_job(key, job, known | {"matrix": one}) for one in self._matrix(job, known)]
            else:
                self.jobs[key] = [Job(key, None, "skipped")]
        return self.jobs

    def _needed(self, key: str) -> dict:
        """A job as others see it: one entry of a matrix that fails fails it."""
        results = {job.result for job in self.jobs[key]}
        result = next(one for one in ("failure", "skipped", "success") if one in results)
        return {"result": result, "outputs": self.jobs[key][-1].outputs}

    def _matrix(self, job: dict, known: dict) -> list[dict]:
        if "strategy" not in job:
            return [{}]
        assert job["strategy"]["fail-fast"] == "false"
        matrix = self._value(job["strategy"]["matrix"], known)
        if "include" in matrix:
            return matrix["include"]
        return [dict(zip(matrix, values, strict=True)) for values in product(*matrix.values())]

    def _run_job(self, key: str, job: dict, known: dict) -> Job:
        """One job: a step runs after a failed one only where its `if` says so."""
        done = Job(str(self._value(job.get("name", key), known)), self._value(job["runs-on"], known))
        known = known | {"steps": {}, "runner": {"temp": str(self.folder / "temp")}}
        env = {name: self._value(value, known) for name, value in job.get("env", {}).items()}
        for step in job["steps"]:
            known["job"] = {"status": done.result}
            name = step.get("name") or step.get("uses", "").partition("@")[0] or step["run"]
            outcome, outputs = "skipped", {}
            if self._asked(step.get("if"), known, done.result == "success"):
                outcome, outputs = self._step(step, known, env, done)
            done.steps[name] = outcome
            known["steps"][step.get("id", name)] = {"outcome": outcome, "outputs": outputs}
            done.result = "failure" if outcome == "failure" else done.result
        done.outputs = {name: str(self._value(value, known)) for name, value in job.get("outputs", {}).items()}
        return done

    def _step(self, step: dict, known: dict, env: dict, done: Job) -> tuple[str, dict]:
        if "uses" in step:
            given = {name: self._value(value, known) for name, value in step.get("with", {}).items()}
            return ACTIONS[step["uses"].partition("@")[0]](self, given), {}
        assert "${{" not in step["run"], "a command should have its values from the environment"
        own = {name: self._value(value, known) for name, value in step.get("env", {}).items()}
        outputs, summary = (self.folder / name for name in ("outputs", "step_summary"))  # a step has its own
        outputs.write_text("")
        summary.write_text("")
        files = {"GITHUB_OUTPUT": outputs, "GITHUB_STEP_SUMMARY": summary, "GITHUB_PATH": self.folder / "path"}
        temp = {"RUNNER_TEMP": known["runner"]["temp"]}
        env = self.env | temp | {name: str(value) for name, value in (files | env | own).items()}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        child = subprocess.run(command, cwd=self.root, env=env, capture_output=True, text=True, timeout=300)
        done.log += f"$ {step['run']}\n{child.stdout}{child.stderr}"
        self.summary += summary.read_text()
        found = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
        return "failure" if child.returncode else "success", found

    def _asked(self, condition: str | None, known: dict, went_well: bool) -> bool:
        """Whether a job or a step with this `if` runs; one that asks for no status wants that all went well."""
        if condition is None:
            return went_well
        inner = condition.removeprefix("${{").removesuffix("}}")
        asks = re.search(r"\b(always|cancelled|success|failure)\(", inner)
        return bool(self._evaluate(inner, known)) and (went_well or bool(asks))

    def _value(self, text: object, known: dict):
        """`text` with its expressions evaluated; one that is all of it keeps its type."""
        if not isinstance(text, str):
            return text
        if whole := re.fullmatch(_EXPRESSION, text):
            return self._evaluate(whole[1], known)
        return _EXPRESSION.sub(lambda match: str(self._evaluate(match[1], known)), text)

    def _evaluate(self, expression: str, known: dict):
        """An expression of GitHub's, by way of Python's own."""
        contexts = self.contexts | known
        functions = {"always": lambda: True, "cancelled": lambda: False, "fromJSON": json.loads}
        functions["format"] = lambda text, *values: text.format(*values)
        names = {}

        def put(match: re.Match) -> str:
            if match[0].startswith("'") or match[0] in functions:
                return match[0]
            name = f"v{len(names)}"
            names[name] = _looked_up(match[0].split("."), contexts)
            return name

        python = _NAME.sub(put, expression.strip()).replace("&&", " and ").replace("||", " or ")
        return eval(re.sub(r"!(?!=)", " not ", python).strip(), {"__builtins__": {}}, functions | names)


def _looked_up(path: list[str], contexts: dict):
    """A value of a context; one that is not there is "", as with GitHub, but its context must be."""
    value = contexts[path[0]]
    for name in path[1:]:
        value = value.get(name, "") if isinstance(value, dict) else ""
    return value


def _checkout(runner: Runner, given: dict) -> str:
    assert given["persist-credentials"] == "false"
    return "success"


def _upload(runner: Runner, given: dict) -> str:
    source, target = runner.root / given["path"], runner.artifacts / given["name"]
    if not source.exists():
        return "failure" if given["if-no-files-found"] == "error" else "success"
    assert not target.exists(), f"two artifacts are called {given['name']}"
    shutil.copytree(source, target)
    shutil.rmtree(source)  # the next job has a machine of its own
    return "success"


def _download(runner: Runner, given: dict) -> str:
    target = runner.root / given["path"]
    shutil.rmtree(target, ignore_errors=True)
    one = given.get("name")
    if one and not (runner.artifacts / one).is_dir():
        return "failure"
    shutil.copytree(runner.artifacts / one if one else runner.artifacts, target)
    return "success"


ACTIONS = {
    "actions/checkout": _checkout,
    "actions/upload-artifact": _upload,
    "actions/download-artifact": _download,
}
