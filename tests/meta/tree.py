"""The tree under test as its own tests see it: rooms, files, copies of it, and child processes that run in a copy."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from nvfp4_suite.ci import gpu_tests

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGE_DIR = PROJECT["tool"]["setuptools"]["package-dir"]
ROOMS = sorted(name.removeprefix("nvfp4_suite.") for name in PACKAGE_DIR if name != "nvfp4_suite")

# What a test session needs beside the rooms.
_FRAME = ("pyproject.toml", "README.md", "LICENSE", *(f"tests/{path.name}" for path in (ROOT / "tests").glob("*.py")))


def python_files(*folders: str) -> list[Path]:
    """All .py files under `folders` of the tree, in order."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def copy(to: Path) -> Path:
    """A copy of the rooms and of the frame of tests/ in the new folder `to`, without any test."""
    _copy_folders(to, *PACKAGE_DIR.values())
    for name in _FRAME:
        (to / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, to / name)
    return to


def copy_all(to: Path) -> Path:
    """A copy of the rooms and of all tests in the new folder `to`."""
    _copy_folders(to, *PACKAGE_DIR.values(), "tests")
    for name in _FRAME:
        shutil.copy(ROOT / name, to / name)
    return to


def _copy_folders(to: Path, *folders: str) -> None:
    for folder in folders:
        shutil.copytree(ROOT / folder, to / folder, ignore=shutil.ignore_patterns("__pycache__"))


def run_python(*arguments: str, cwd: Path, stdin: str = "", **environment: str) -> subprocess.CompletedProcess:
    """`python ARGUMENTS` in `cwd`, without what this session's own engine, workers and root put in the environment."""
    mine = ("PYTEST_", "TRITON_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    paths = [path for path in env.pop("PYTHONPATH", "").split(os.pathsep) if path not in ("", str(ROOT))]
    env |= {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=cwd, env=env | environment, input=stdin, capture_output=True, text=True, timeout=300
    )


def run_pytest(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    """A pytest session of its own, in the tree `cwd`, which -P keeps off sys.path as the command `pytest` does.

    With the plugins that a session on GPUs has: the import of Hypothesis's takes seconds.
    """
    whole = ["-P", "-m", "pytest", "-p", "no:cacheprovider", *gpu_tests.plugins(arguments), *arguments]
    return run_python(*whole, cwd=cwd, **gpu_tests.NO_OTHERS, **environment)
