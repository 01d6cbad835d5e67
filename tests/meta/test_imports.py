"""Who imports whom. The rules are read off the source, so that a rule also holds for imports inside functions."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .tree import ROOMS, ROOT, python_files, run_python

# A room may import itself and these. Kernels and reference never meet: they are two independent statements.
MAY_IMPORT = {
    "contract": set(),
    "cases": {"contract"},
    "kernels": {"contract"},
    "reference": {"contract"},
    "ci": set(ROOMS),
    "bench": set(ROOMS),
}

# Modules that need neither torch nor triton, and so run on any machine.
PURE = [f"kernels.{name}" for name in ("launch", "linear_plan", "padding", "page", "plan", "releases", "remembered")]
PURE += [f"kernels.{name}" for name in ("tiles", "tuning", "w4a4")]


@dataclass(frozen=True)
class Import:
    """One import statement: the module as an absolute name, and where it stands."""

    module: str
    file: str
    line: int
    relative: bool
    at_import_time: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def imports(path: Path) -> Iterator[Import]:
    """Every import in the file at `path`; `from . import x` counts as an import of both `.` and `.x`."""
    file = path.relative_to(ROOT)
    package = ["nvfp4_suite", *file.parts[:-1]]
    for node, at_import_time in _walk(ast.parse(path.read_text()), True):
        if isinstance(node, ast.Import):
            modules, relative = [alias.name for alias in node.names], False
        elif isinstance(node, ast.ImportFrom):
            relative = node.level > 0
            base = package[: len(package) - node.level + 1] if relative else []
            base = ".".join([*base, *([node.module] if node.module else [])])
            modules = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for module in modules:
            yield Import(module, str(file), node.lineno, relative, at_import_time)


def _walk(node: ast.AST, at_import_time: bool) -> Iterator[tuple[ast.AST, bool]]:
    """All nodes, each with whether it runs when the module is imported: outside functions and TYPE_CHECKING."""
    yield node, at_import_time
    deferred = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        deferred = True
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, at_import_time and not deferred)


def _all_imports(folder: str) -> list[Import]:
    return [found for path in python_files(folder) for found in imports(path)]


def _top(found: Import) -> str:
    return found.module.split(".")[0]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_that_it_may(room):
    allowed = {room} | MAY_IMPORT[room]
    ours = [found for found in _all_imports(room) if found.module.startswith("nvfp4_suite.")]
    assert [str(found) for found in ours if found.module.split(".")[1] not in allowed] == []


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_each_other_relatively_and_never_the_tests(room):
    own_names = {"nvfp4_suite", "tests", *ROOMS}
    absolute = [found for found in _all_imports(room) if not found.relative]
    assert [str(found) for found in absolute if _top(found) in own_names] == []


def test_tests_import_rooms_by_their_full_name():
    """Absolutely, and each other relatively; two levels too many would leave tests/ for a top-level name."""
    found = _all_imports("tests")
    assert [str(f) for f in found if f.relative and not f.module.startswith("nvfp4_suite.tests")] == []
    assert [str(f) for f in found if not f.relative and _top(f) in {"tests", *ROOMS}] == []


@pytest.mark.parametrize(
    ("folder", "never"),
    [
        ("kernels/device", {"torch"}),
        ("reference", {"triton"}),
        ("cases", {"torch", "triton"}),
        ("contract", {"triton"}),
    ],
)
def test_a_folder_never_imports(folder, never):
    assert [str(found) for found in _all_imports(folder) if _top(found) in never] == []


def test_contract_imports_heavy_packages_inside_functions_only():
    early = [found for found in _all_imports("contract") if found.at_import_time]
    assert [str(found) for found in early if _top(found) in {"torch", "safetensors", "numpy"}] == []


def test_pure_modules_run_without_torch_and_triton():
    """Checked in a process where both are missing, so that what a module imports indirectly counts too."""
    contract = [f"contract.{path.stem}" for path in python_files("contract") if path.stem != "__init__"]
    modules = [f"nvfp4_suite.{name}" for name in {*PURE, *contract}]
    program = f"""
import importlib, sys
sys.modules.update(dict.fromkeys(["torch", "triton", "safetensors", "numpy"]))  # None: importing them raises
for name in {modules}:
    importlib.import_module(name)
"""
    child = run_python("-c", program, cwd=ROOT)
    assert child.returncode == 0, child.stderr


@pytest.mark.parametrize("statement", ["import {room}", "from {room} import anything", "import {room}.anything"])
@pytest.mark.parametrize("room", [*ROOMS, "tests"])
def test_ruff_bans_the_top_level_name(room, statement):
    child = _ruff(statement.format(room=room))
    assert child.returncode == 1
    assert f"TID251 `{room}` is banned" in child.stdout


def test_ruff_allows_the_full_and_the_relative_name():
    child = _ruff("from nvfp4_suite.kernels import plan\nfrom . import formats\nfrom ..contract import gpus\n")
    assert child.returncode == 0, child.stdout


def _ruff(source: str):
    """Ruff's verdict on `source` as if it were a file of the reference room, by the project's own configuration."""
    path = ROOT / "reference" / "planted.py"
    command = ("-m", "ruff", "check", "--select", "TID251", "--stdin-filename", str(path), "-")
    return run_python(*command, cwd=ROOT, stdin=source)
