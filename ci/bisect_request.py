"""Whether a bisect that somebody asks for in a browser may run, and where: read before anything of it is checked out.

    python -m nvfp4_suite.ci.bisect_request --good SHA --bad SHA --case ID [...] [--output FILE]

The revisions are commits of this branch's own history, which a commit of a fork never is, although GitHub serves it
under its number like any other; the case is one of the tables, the kernel one that dispatch knows, the runner one of
ci/runners.json. Prints `labels`, the machine's as JSON, and `arguments`, those of `nox -s bisect` in one line that a
shell may split at its blanks; FILE is GitHub's file of a step's outputs. Exit code 0: it may. 1: it may not. 2: wrong
arguments.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

from ..cases.layers import ALL
from ..kernels.plan import KERNELS
from ..kernels.releases import TRITONS
from . import gates, runners
from .runners import Unknown

ROOT = Path(__file__).resolve().parent.parent
ENGINES = ("gpu", "interpreter")
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_LAUNCH = re.compile(r"[a-z0-9_.-]+")


def commit(name: str, revision: str, root: Path = ROOT) -> str:
    """The whole number of the commit `revision`, which HEAD has in its history. Raises Unknown for any other."""
    if not _COMMIT.fullmatch(revision):
        raise Unknown(f"{name} is {revision!r}, but should be a commit's number: 7 to 64 of 0-9 and a-f")
    found = _git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if found.returncode:
        raise Unknown(f"{name} is {revision}, but no commit, or several, begin so")
    if _git(root, "merge-base", "--is-ancestor", found.stdout.strip(), "HEAD").returncode:
        raise Unknown(f"{name} is {revision}, but should be in the history of the default branch")
    return found.stdout.strip()


def request(options: argparse.Namespace, root: Path = ROOT) -> dict[str, str]:
    """`labels` and `arguments` as this module prints them. Raises Unknown, naming the argument."""
    if bool(options.case) == bool(options.launch):
        raise Unknown(f"case is {options.case!r} and launch {options.launch!r}, but one of them should be named")
    where = _releases(options) if options.over else _commits(options, root)
    what = _launch(options) if options.launch else _case(options)
    on_gpu = options.case and options.engine == "gpu"
    labels = _runner(options.runner).labels if on_gpu else (runners.HOSTED,)
    return {"labels": json.dumps(labels), "arguments": " ".join([*where, *what])}


def _commits(options: argparse.Namespace, root: Path) -> list[str]:
    good, bad = commit("good", options.good, root), commit("bad", options.bad, root)
    if good == bad or _git(root, "merge-base", "--is-ancestor", good, bad).returncode:
        raise Unknown(f"good is {good}, but should be an ancestor of bad, {bad}")
    return ["--good", good, "--bad", bad]


def _releases(options: argparse.Namespace) -> list[str]:
    what, _, releases = options.over.partition("=")
    if what != "triton" or not set(releases.split(",")) <= set(TRITONS):
        raise Unknown(f"over is {options.over!r}, but should be triton= and some of {','.join(TRITONS)}")
    if options.good or options.bad:
        raise Unknown(f"over is {options.over!r}, but good and bad are named too: it goes over one or the other")
    return ["--over", options.over]


def _case(options: argparse.Namespace) -> list[str]:
    if options.case not in {case.id for case in ALL}:
        raise Unknown(f"case is {options.case!r}, but should be the id of a case of cases/layers.py")
    if options.kernel and options.kernel not in KERNELS:
        raise Unknown(f"kernel is {options.kernel!r}, but should be of {', '.join(KERNELS)}")
    if options.engine not in ENGINES:
        raise Unknown(f"engine is {options.engine!r}, but should be of {', '.join(ENGINES)}")
    kernel = ["--kernel", options.kernel] if options.kernel else []
    return ["--case", options.case, *kernel, "--engine", options.engine]


def _launch(options: argparse.Namespace) -> list[str]:
    """The launch may be one that HEAD has no more; of its id, only the form is known."""
    known = [gates.arch_name(capability).removeprefix("sm_") for capability in gates.GATED]
    if not _LAUNCH.fullmatch(options.launch) or options.launch.startswith("-"):
        raise Unknown(f"launch is {options.launch!r}, but should be an id, as compile-gates prints it")
    if options.arch not in known:
        raise Unknown(f"arch is {options.arch!r}, but should be of {', '.join(known)}")
    return ["--launch", options.launch, "--arch", options.arch]


def _runner(name: str) -> runners.Runner:
    fleet = {runner.name: runner for runner in runners.read()}
    if name not in fleet:
        raise Unknown(f"runner is {name!r}, but should be of {', '.join(fleet)}")
    return fleet[name]


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nvfp4_suite.ci.bisect_request", description="may this bisect run?")
    for name in ("good", "bad", "case", "kernel", "engine", "runner", "over", "launch", "arch"):
        parser.add_argument(f"--{name}", default="", metavar=name.upper())
    parser.add_argument("--output", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    try:
        found = request(options)
    except Unknown as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    lines = [f"{name}={value}\n" for name, value in found.items()]
    print("".join(lines), end="")
    if options.output:
        with options.output.open("a", encoding="utf-8") as file:
            file.writelines(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
