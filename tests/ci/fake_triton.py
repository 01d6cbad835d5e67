"""Releases of Triton that are not: the installed one under another number, with some of its sources changed."""

import importlib.util
import re
from pathlib import Path

INSTALLED = Path(importlib.util.find_spec("triton").origin).parent

# Of each, (file, what it has once, what a fake has instead).
ANOTHER_ASSEMBLY = (
    "backends/nvidia/compiler.py",
    "*reg_alloc, *ptx_extra",
    "'--opt-level', '1', *reg_alloc, *ptx_extra",
)
ANOTHER_DOT = ("runtime/interpreter.py", "dtype=d.data.dtype) + d.data", "dtype=d.data.dtype) * 2 + d.data")


def installed() -> str:
    return re.search(r"^__version__ = '(.+?)(?:\+.*)?'$", (INSTALLED / "__init__.py").read_text(), re.MULTILINE)[1]


def fake(folder: Path, release: str, *changes: tuple[str, str, str]) -> str:
    """FOLDER/triton, which calls itself `release`; "RELEASE=FOLDER", as --packages takes it."""
    root = folder / "triton"
    version = f"__version__ = '{installed()}"
    for file, old, new in (("__init__.py", version, f"__version__ = '{release}"), *changes):
        _link(INSTALLED / file, root / file, root)
        text = (INSTALLED / file).read_text()
        assert text.count(old) == 1, (file, old)
        (root / file).unlink()
        (root / file).write_text(text.replace(old, new))
    return f"{release}={folder}"


def _link(source: Path, path: Path, root: Path) -> None:
    """Makes the folder of `path` and those above it, up to `root`, real ones, with links to all that `source` has."""
    if path.parent != root:
        _link(source.parent, path.parent, root)
        if path.parent.is_symlink():
            path.parent.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    for one in source.parent.iterdir():
        if not (path.parent / one.name).exists() and one.name != "__pycache__":
            (path.parent / one.name).symlink_to(one)
