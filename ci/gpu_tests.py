"""The tests that run kernels, on every GPU of this host: one session for each kind, whose equal GPUs share its work.

    python -m nvfp4_suite.ci.gpu_tests [--tier=smoke|ci|all] [--sanitize[=memcheck|racecheck]] [--artifacts=DIR] [...]

What else there is, is pytest's. Of its plugins those are loaded that the tests need, and no others that the host may
have: each is imported by every worker, and may warn, which is an error here. `-p NAME` brings one in.

Plans, and so results, go by the kind of GPU, and pytest-xdist gives any test to any worker of a session. So kinds have
sessions of their own, one after another, as compiling takes all cores anyway. Exit code: the worst of the sessions'.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ..contract.case import TIERS
from . import gpus, sanitizer
from .environment import CHOOSES_GPUS
from .gpus import Kind, NoGpu, Visible

ROOT = Path(__file__).resolve().parent.parent
ARTIFACTS = "build/gpu-tests"
PLUGINS = {"xdist": "xdist", "timeout": "pytest_timeout", "pytest-split": "pytest_split"}  # and what they are part of
NO_OTHERS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nvfp4_suite.ci.gpu_tests", description="tests on this host's GPUs")
    parser.add_argument("--sanitize", choices=("all", *sanitizer.TOOLS), nargs="?", const="all", metavar="TOOL")
    parser.add_argument("--tier", choices=TIERS, default="all", help="default: all")
    parser.add_argument("--artifacts", default=str(ROOT / ARTIFACTS), metavar="DIR", help=f"default: {ARTIFACTS}")
    options, rest = parser.parse_known_args(arguments)
    try:
        kinds = gpus.kinds(gpus.mine())
    except NoGpu as error:
        print(f"gpu-tests {error}", file=sys.stderr)
        return 1
    return max(_session(kind, ones, options, rest) for kind, ones in kinds.items())


def _session(kind: Kind, ones: list[Visible], options: argparse.Namespace, rest: list[str]) -> int:
    """The tests on the GPUs of one kind; under each tool in turn, where tools are asked for."""
    print(f"{gpus.kind_name(kind)}: {', '.join(str(one.device) for one in ones)}", flush=True)
    artifacts = Path(options.artifacts, re.sub(r"\W+", "-", kind[0]).strip("-"))
    chosen = {CHOOSES_GPUS: ",".join(one.spelling for one in ones), "OMP_NUM_THREADS": "1"}
    env = os.environ | NO_OTHERS | chosen
    if options.sanitize:
        tools = sanitizer.TOOLS if options.sanitize == "all" else (options.sanitize,)
        return max(sanitizer.run(tool, artifacts / tool, rest, env) for tool in tools)
    return subprocess.run(command(artifacts, options.tier, rest), env=env, cwd=ROOT).returncode


def command(artifacts: Path, tier: str, rest: list[str]) -> list[str]:
    """Pytest's command line; what `rest` says of workers holds."""
    workers = ["--numprocesses=auto", "--dist=worksteal"]
    where = ["--engine=gpu", f"--tier={tier}", f"--artifacts={artifacts}"]  # "--tier ci" would name the folder ci
    record = f"--junitxml={artifacts / 'junit.xml'}"
    return [sys.executable, "-m", "pytest", *where, *plugins(rest), *workers, record, *rest]


def plugins(rest: Sequence[str] = ()) -> list[str]:
    """What loads those of PLUGINS that are installed and that `rest` does not say no to, with NO_OTHERS set."""
    given = {one.removeprefix("-p") for one in rest}
    wanted = [name for name, module in PLUGINS.items() if find_spec(module) and f"no:{name}" not in given]
    return [word for name in wanted for word in ("-p", name)]


if __name__ == "__main__":
    sys.exit(main())
