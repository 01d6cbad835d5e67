"""What a session on a GPU imports: every worker collects, so that a file without a test for it costs each of them.

A file that does not say `device` has none. A fixture from elsewhere that took it would hide its tests from all GPUs.
"""

import pytest

from ..ci import hosts
from .tree import copy, run_pytest

_HIDDEN = """
import pytest
@pytest.fixture
def hidden(device): return device
"""


@pytest.fixture
def session(tmp_path):
    """Runs tests/planted of a copy of the tree, which has these files."""
    tree = copy(tmp_path / "tree")

    def run(files: dict[str, str], *arguments: str):
        for name, source in {"__init__.py": "", **files}.items():
            (tree / "tests" / "planted" / name).parent.mkdir(exist_ok=True)
            (tree / "tests" / "planted" / name).write_text(source)
        environment = {
            "FAKE_HOST": str(hosts.write(tmp_path / "host.json", hosts.HOSTS["one"])),
            "NVFP4_SUITE_LEASES": str(tmp_path / "leases"),
        }
        fakes = {"PYTHONPATH": str(hosts.FAKES)} if "--engine=gpu" in arguments else {}
        return run_pytest(*arguments, "tests/planted", cwd=tree, **environment, **fakes)

    return run


def test_a_gpu_session_imports_no_file_that_says_nothing_of_the_device(session):
    files = {
        "test_none.py": "raise SystemExit('imported')\ndef test_one(devices): pass\n",
        "test_some.py": "def test_one(device): pass\ndef test_other(): raise SystemExit('ran')\n",
    }
    child = session(files, "--engine=gpu")
    assert child.returncode == 0, child.stdout + child.stderr
    assert "1 passed, 1 deselected" in child.stdout


def test_examples_that_would_differ_in_each_run_are_refused(session):
    """No worker of a session on GPUs imports Hypothesis, to which tests/conftest.py gives one seed elsewhere."""
    source = """
import sys
HAD = "hypothesis" in sys.modules
from hypothesis import given, strategies
@given(strategies.integers())
def test_one(device, number): assert not HAD
"""
    child = session({"test_some.py": source}, "--engine=gpu", "-p", "hypothesispytest")
    assert child.returncode == 1
    assert "1 passed" in child.stdout, child.stdout + child.stderr
    assert "NO PROFILE ON A GPU: tests/planted/test_some.py::test_one" in child.stdout


def test_a_device_that_comes_by_way_of_another_file_is_refused(session):
    child = session({"conftest.py": _HIDDEN, "test_some.py": "def test_one(hidden): pass\n"})
    assert child.returncode == 1
    assert "NOT ON A GPU: tests/planted/test_some.py::test_one: its file should name" in child.stdout
