"""The shape of the tree: what pyproject.toml lists is what there is, and files stay small and free of one machine."""

import re

import pytest

from .tree import PACKAGE_DIR, PROJECT, ROOMS, ROOT, python_files

_TEXT = {".json", ".md", ".py", ".toml", ".yml"}
_MACHINE_PATH = re.compile(r"/(?:work|root|farm|tmp/w|home/\w+|Users/\w+)/")


def _packages_in_tree() -> set[str]:
    """Every folder with an __init__.py, under its import name; tests are no package of the project."""
    folders = {path.parent.relative_to(ROOT) for path in python_files(*_top_folders()) if path.name == "__init__.py"}
    names = (".".join(folder.parts) for folder in folders)
    return {name if name == "nvfp4_suite" else f"nvfp4_suite.{name}" for name in names}


def _top_folders() -> list[str]:
    return [path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests"]


def test_pyproject_lists_every_package_of_the_tree():
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == _packages_in_tree()


def test_every_room_is_mapped_to_its_folder():
    assert {"nvfp4_suite": "nvfp4_suite"} | {f"nvfp4_suite.{room}": room for room in ROOMS} == PACKAGE_DIR
    assert set(PACKAGE_DIR.values()) == set(_top_folders())


@pytest.mark.parametrize("room", ROOMS)
def test_init_files_of_rooms_are_empty(room):
    inits = list((ROOT / room).rglob("__init__.py"))
    assert inits
    assert [path for path in inits if path.read_bytes()] == []


def test_every_python_folder_is_a_package():
    """Two test files of one name in two folders could not be told apart otherwise."""
    folders = {path.parent for path in python_files("tests", *ROOMS)}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_a_file_holds_one_idea():
    lengths = {path: len(path.read_text().splitlines()) for path in python_files("tests", "nvfp4_suite", *ROOMS)}
    assert {str(path.relative_to(ROOT)): lines for path, lines in lengths.items() if lines > 400} == {}


def test_no_file_names_a_path_of_one_machine():
    folders = [ROOT / name for name in ("tests", "golden", ".ci", ".github", *PACKAGE_DIR.values())]
    nested = [path for folder in folders for path in folder.rglob("*") if path.suffix in _TEXT or path.name == "run"]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in [*nested, *ROOT.glob("*.md"), *ROOT.glob("*.py"), *ROOT.glob("*.toml")]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if _MACHINE_PATH.search(line)
    ]
    assert found == []
