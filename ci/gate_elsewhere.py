"""Runs gates on another tree's kernels: of an older revision, or of a copy with a fault planted.

A child process runs there, with this tree's gates and that tree's kernels. What depends on nothing that differs is
known from before, so that a comparison compiles only what changed.
"""

import os
import pickle
import shutil
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

from . import gate_folders, gate_run
from .gate_outcome import Gate, Outcome

ROOT = Path(__file__).resolve().parent.parent
_OURS = ("environment.py", "gate_*.py")  # the rest of ci/, such as the list of launches, is the other tree's


class NoGates(Exception):
    """A tree whose gates cannot be run: why."""


def checked_out(revision: str, directory: Path) -> Path:
    """The tree of `revision` in the new folder `directory`, with this tree's gates. Raises NoGates."""
    git = subprocess.run(["git", "-C", str(ROOT), "archive", revision], capture_output=True)
    if git.returncode:
        raise NoGates(f"git archive {revision} fails: {git.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(git.stdout)) as archive:
        archive.extractall(directory, filter="data")
    if not (directory / "ci" / "gates.py").exists():
        raise NoGates(f"{revision} has no list of launches, ci/gates.py, so that there is nothing to compare")
    for pattern in _OURS:
        for source in (ROOT / "ci").glob(pattern):
            shutil.copy(source, directory / "ci")
    return directory


def listed(tree: Path, triton: str) -> list[Gate]:
    """All gates that `tree` lists for that `triton` release. Raises NoGates."""
    return _asked(tree, triton)


def outcomes(tree: Path, gates: list[Gate], settings: gate_run.Settings) -> list[Outcome]:
    """The outcomes of `gates` with the kernels of `tree`. Raises NoGates."""
    return _asked(tree, (gates, settings))


def _asked(tree: Path, question: object):
    """What a child process in `tree` answers."""
    with gate_folders.folder() as directory:
        asked, found = directory / "asked", directory / "found"
        asked.write_bytes(pickle.dumps(question))
        paths = [str(tree), *(path for path in sys.path if path and Path(path).resolve() != ROOT)]
        command = [sys.executable, "-P", "-m", "nvfp4_suite.ci.gate_elsewhere", str(asked), str(found)]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        child = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
        if child.returncode:
            raise NoGates(f"the gates do not run in {tree.name}: {child.stderr.strip().splitlines()[-1]}")
        return pickle.loads(found.read_bytes())


def _answer(question: object) -> list:
    if isinstance(question, str):
        from .gates import launches

        return list(launches(question))
    return gate_run.run(*question)


def _main(asked: Path, found: Path) -> None:
    found.write_bytes(pickle.dumps(_answer(pickle.loads(asked.read_bytes()))))


if __name__ == "__main__":
    _main(*map(Path, sys.argv[1:]))
