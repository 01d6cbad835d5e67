"""Where a golden digest comes from: toolchain, device and sources; and whether this tree may record at all."""

import hashlib
import json
import os
import platform
import subprocess
from pathlib import Path

from .golden_file import Refused

ROOMS = ("cases", "ci", "contract", "kernels", "reference")


def provenance(engine: str) -> dict[str, str]:
    """What `engine` ("reference", "interpreter", "sm_90") runs on in this process: versions, device, driver."""
    import torch

    facts = {"python": platform.python_version(), "torch": torch.__version__, "device": platform.machine()}
    if engine == "reference":
        return facts
    import triton

    facts["triton"] = triton.__version__
    return facts | (_interpreter() if engine == "interpreter" else _gpu())


def _interpreter() -> dict[str, str]:
    import ml_dtypes
    import numpy

    return {"numpy": numpy.__version__, "ml_dtypes": ml_dtypes.__version__}


def _gpu() -> dict[str, str]:
    import torch
    from triton.backends.nvidia.compiler import get_ptxas

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    drivers = subprocess.run(
        query, check=True, capture_output=True, text=True
    ).stdout.split()  # one a GPU, all the same
    major, minor = torch.cuda.get_device_capability()
    return {
        "device": torch.cuda.get_device_name(),
        "driver": drivers[0],
        "assembler": f"ptxas {get_ptxas(10 * major + minor).version}",
    }


def sources_digest(root: Path) -> str:
    """SHA-256 over every *.py of the rooms: one line "<SHA-256 of the file>  <path>" each, sorted by path.

    Needs no git. A shell gets the same from `find cases ci contract kernels reference -name '*.py' | LC_ALL=C sort |
    xargs sha256sum | sha256sum`, run in the root.
    """
    paths = sorted(path.relative_to(root).as_posix() for room in ROOMS for path in (root / room).rglob("*.py"))
    lines = (f"{hashlib.sha256((root / path).read_bytes()).hexdigest()}  {path}\n" for path in paths)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def refuse_in_ci() -> None:
    """Raises Refused where the environment says CI: what CI computes is compared, never recorded."""
    if os.environ.get("CI"):
        raise Refused(f"CI is set to {os.environ['CI']!r}, but goldens are recorded by hand only")


def clean_commit(root: Path) -> str:
    """The commit that `root` is at. Raises Refused if files outside golden/ are modified or untracked."""
    changes = _git(root, "status", "--porcelain", "--untracked-files=all", "--", ".", ":(exclude)golden")
    if changes:
        raise Refused(f"the tree is dirty, but should be committed outside golden/ before recording:\n{changes}")
    return _git(root, "rev-parse", "HEAD").strip()


def committed_entries(root: Path, path: Path) -> set[str]:
    """The keys of a golden file's entries as it is in the commit that `root` is at; none where it has no such file."""
    name = path.relative_to(root).as_posix()
    if not _git(root, "ls-tree", "--name-only", "HEAD", "--", name):
        return set()
    return set(json.loads(_git(root, "show", f"HEAD:{name}"))["entries"])


def _git(root: Path, *arguments: str) -> str:
    try:
        run = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise Refused("there is no git here; use record --out FILE, then record --from FILE in a checkout") from error
    if run.returncode:
        raise Refused(f"git {arguments[0]} fails: {run.stderr.strip()}; without a checkout, use record --out FILE")
    return run.stdout
