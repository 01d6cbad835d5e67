"""The three ways to have the project: a plain clone, an editable install and a wheel; each imports its own files."""

import zipfile
from pathlib import Path

import pytest

from .tree import ROOMS, copy, run_python

# Prints where every room was found, and that the rooms work together.
_PROGRAM = f"""
import importlib
for room in {ROOMS}:
    print(importlib.import_module("nvfp4_suite." + room).__file__)
from nvfp4_suite.kernels.plan import plan_layer
"""

_PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
_OFFLINE = ("--no-deps", "--no-index", "--no-build-isolation")


def _places(child) -> set[Path]:
    assert child.returncode == 0, child.stderr
    return {Path(line) for line in child.stdout.split()}


def test_a_clone_works_without_an_install(tmp_path):
    tree = copy(tmp_path / "clone")
    found = _places(run_python("-c", _PROGRAM, cwd=tree))
    assert found == {tree / room / "__init__.py" for room in ROOMS}


def test_rooms_beside_the_package_are_ignored_unless_pyproject_lies_there(tmp_path):
    """An installed package must not pick up a stranger's folder `kernels` in the same site-packages."""
    tree = copy(tmp_path / "site-packages")
    (tree / "pyproject.toml").unlink()
    child = run_python("-c", "import nvfp4_suite.kernels", cwd=tree)
    assert "No module named 'nvfp4_suite.kernels'" in child.stderr


def test_an_editable_install_finds_the_tree(tmp_path):
    tree, prefix = copy(tmp_path / "clone"), tmp_path / "prefix"
    _places(run_python(*_PIP, "install", *_OFFLINE, "--prefix", str(prefix), "--editable", str(tree), cwd=tmp_path))
    (site_packages,) = [path.parent for path in prefix.rglob("nvfp4_suite-*.dist-info")]
    program = f"import site; site.addsitedir({str(site_packages)!r})\n{_PROGRAM}"
    found = _places(run_python("-c", program, cwd=tmp_path))
    assert found == {tree / room / "__init__.py" for room in ROOMS}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel of this tree, built from a copy, since a build leaves folders behind."""
    home = tmp_path_factory.mktemp("wheel")
    _places(run_python(*_PIP, "wheel", *_OFFLINE, "--wheel-dir", str(home), str(copy(home / "tree")), cwd=home))
    return next(home.glob("*.whl"))


def test_a_wheel_holds_every_file_of_the_rooms(wheel):
    rooms = wheel.parent / "tree"
    files = [path for room in ROOMS for kind in ("py", "html", "css") for path in (rooms / room).rglob(f"*.{kind}")]
    wanted = {f"nvfp4_suite/{path.relative_to(rooms)}" for path in files}
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert inside == wanted | {"nvfp4_suite/__init__.py", "nvfp4_suite/__main__.py"}


def test_an_installed_wheel_works(wheel, tmp_path):
    site_packages = tmp_path / "site-packages"
    zipfile.ZipFile(wheel).extractall(site_packages)
    found = _places(run_python("-c", _PROGRAM, cwd=tmp_path, PYTHONPATH=str(site_packages)))
    assert found == {site_packages / "nvfp4_suite" / room / "__init__.py" for room in ROOMS}
