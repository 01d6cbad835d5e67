"""Every fault of the table is held by a test, and every mark names a fault of the table. Read off the source."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

from ..faults import FAULTS
from .tree import ROOT, python_files

ON_GPU_ALONE = {"hardware", "launch"}


def marks(tree: ast.AST) -> dict[str, list[str]]:
    """The references of `@pytest.mark.fault(...)`, each with the functions that are marked so."""
    found = defaultdict(list)
    for node in ast.walk(tree):
        for decorator in getattr(node, "decorator_list", ()):
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.fault":
                for reference in decorator.args:
                    found[ast.literal_eval(reference)].append(node.name)
    return found


@cache
def marked_tests() -> dict[str, list[tuple[Path, str]]]:
    """Reference -> the (path under tests/, function) that are marked with it."""
    tests = defaultdict(list)
    for path in python_files("tests"):
        for reference, functions in marks(ast.parse(path.read_text())).items():
            tests[reference] += [(path.relative_to(ROOT / "tests"), function) for function in functions]
    return tests


def test_every_fault_has_a_test_that_needs_no_gpu():
    held = {name for name, tests in marked_tests().items() if any(t[0].parts[0] not in ON_GPU_ALONE for t in tests)}
    assert sorted(set(FAULTS) - held) == []


def test_every_mark_names_a_fault_of_the_table():
    assert sorted(set(marked_tests()) - set(FAULTS)) == []


def test_only_tests_are_marked():
    """A mark of a helper would hold nothing."""
    every = [(str(path), function) for tests in marked_tests().values() for path, function in tests]
    assert [one for one in every if not one[1].startswith("test_") or not Path(one[0]).name.startswith("test_")] == []


def test_marks_are_found():
    source = """
@pytest.mark.parametrize("m", [1])
@pytest.mark.fault("a/b#1")
def test_it(m): pass
"""
    assert marks(ast.parse(source)) == {"a/b#1": ["test_it"]}
