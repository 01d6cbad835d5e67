"""What this host's results depend on: packages, assembler, driver, GPUs, variables and sources. Imports no torch."""

import json
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from . import gpus
from .environment import CHANGES_CODE
from .files import write_json
from .gpus import Device
from .provenance import sources_digest

PACKAGES = ("torch", "triton", "numpy", "ml-dtypes", "safetensors", "pytest", "pytest-xdist")
# As they begin. A container's own NVIDIA_REQUIRE_... and the like say nothing of what runs.
VARIABLES = ("CUBLAS", "CUDA_", "NVFP4_SUITE_", "NVIDIA_TF32", "NVIDIA_VISIBLE", "OMP_", "PYTORCH", "TORCH_", "TRITON_")
ROOT = Path(__file__).resolve().parent.parent


def report(devices: list[Device]) -> dict:
    """All of it, as JSON has it. `devices` are the session's own; without any, there is no driver and no assembler."""
    facts = {"python": platform.python_version(), "machine": platform.machine(), "system": platform.release()}
    facts |= {name: _version(name) for name in PACKAGES}
    if devices:
        facts |= {"driver": gpus.driver_version(), "assembler": _assembler(devices[0])}
    return for_this_process(facts | {"sources": sources_digest(ROOT), "commit": _commit()}, devices)


def for_this_process(facts: dict, devices: list[Device]) -> dict:
    """A report with the GPUs and variables of this process, which a worker of the one that made it has of its own."""
    names = {name for name in os.environ if name.startswith(VARIABLES) or name in CHANGES_CODE}
    return facts | {
        "gpus": [{"uuid": one.uuid, "name": one.name, "capability": list(one.capability)} for one in devices],
        "variables": {name: os.environ[name] for name in sorted(names)},
    }


def line(facts: dict) -> str:
    """A report in one line, without what seldom differs."""
    words = [f"{name} {facts[name]}" for name in ("torch", "triton", "assembler", "driver") if facts.get(name)]
    words += [f"{len(facts['gpus'])} x {facts['gpus'][0]['name']}"] if facts["gpus"] else []
    words += [f"commit {facts['commit'][:12]}"] if facts["commit"] else []
    return ", ".join([*words, f"sources {facts['sources'][:12]}"])


def differences(then: dict, now: dict) -> list[str]:
    """How two reports differ, a line each."""
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    return [f"{name}: {json.dumps(then.get(name))} then, {json.dumps(now.get(name))} now" for name in names]


def write(folder: Path, facts: dict) -> Path:
    """The report as FOLDER/environment.json."""
    return write_json(folder / "environment.json", facts)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _assembler(device: Device) -> str:
    from triton.backends.nvidia.compiler import get_ptxas

    major, minor = device.capability
    return f"ptxas {get_ptxas(10 * major + minor).version}"


def _commit() -> str | None:
    """The commit that the tree is at, "+" behind it where files differ; None where there is no git."""
    try:
        head = _git("rev-parse", "HEAD")
        return head + ("+" if _git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
