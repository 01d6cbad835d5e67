"""What tests/conftest.py promises, tried on sessions of their own in a copy of the tree with planted tests."""

import json
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from .tree import copy, run_pytest

_HEAD = """
import pytest
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.shapes import LayerShape
CASES = [Case(LayerShape(4, 2, 48, 80), tokens) for tokens in (1, 5)]
"""
_ONE_TOKEN, _FIVE_TOKENS = (f"orderfree-e4k2h48i80-t{tokens}-random-silu-bf16" for tokens in (1, 5))
_WORKERS = pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])


@pytest.fixture
def session(tmp_path):
    """Runs pytest in a copy of the tree whose folder tests/planted holds the test file `source`."""
    tree = copy(tmp_path / "tree")
    planted = tree / "tests" / "planted"
    planted.mkdir()
    (planted / "__init__.py").touch()

    def run(source: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        (planted / "test_planted.py").write_text(_HEAD + source)
        return run_pytest(*arguments, cwd=tree, **environment)

    run.tree = tree
    return run


def closing_line(child: subprocess.CompletedProcess) -> str:
    """Pytest's last line, as in "1 passed, 2 skipped"; all of the output where there is none."""
    lines = child.stdout.strip().splitlines()
    return lines[-1].strip("= ") if lines else child.stderr


def plant(tree: Path, folder: str, source: str) -> None:
    """Adds tests/FOLDER/test_planted.py to `tree`."""
    (tree / "tests" / folder).mkdir()
    (tree / "tests" / folder / "__init__.py").touch()
    (tree / "tests" / folder / "test_planted.py").write_text(source)


# Engines


@_WORKERS
def test_the_interpreter_runs_on_the_cpu_with_a_cache_of_its_own(session, workers):
    child = session(
        """
import os
@pytest.mark.parametrize("case", CASES)
def test_engine(case, device, worker_id):
    assert device == "cpu"
    assert os.environ["TRITON_INTERPRET"] == "1"
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == os.getcwd()
    cache = os.environ["TRITON_CACHE_DIR"]
    assert "triton-cache-" in cache and (worker_id == "master" or cache.endswith(worker_id))
""",
        *workers,
    )
    assert child.returncode == 0, child.stdout
    assert "engine: interpreter, triton 3." in child.stdout


def test_a_cache_directory_of_the_users_is_kept(session, tmp_path):
    source = f"""
import os
def test_cache():
    assert os.environ["TRITON_CACHE_DIR"] == {str(tmp_path)!r}
"""
    assert session(source, TRITON_CACHE_DIR=str(tmp_path)).returncode == 0


def test_the_gpu_engine_runs_device_tests_and_fails_without_a_gpu(session):
    """On a host that has a GPU the same session must run there and drop the test that needs no device."""
    import torch

    source = "def test_device(device): assert device == 'cuda'\ndef test_other(): assert False\n"
    child = session(source, "--engine", "gpu", "tests/planted")
    if torch.cuda.is_available():
        assert child.returncode == 0, child.stdout
        assert closing_line(child).startswith("1 passed, 1 deselected")
    else:
        assert child.returncode == pytest.ExitCode.USAGE_ERROR
        assert "--engine gpu needs a CUDA GPU" in child.stderr


def test_the_compile_engine_needs_no_torch_and_imports_nothing_else(session):
    plant(session.tree, "compile", "import sys\ndef test_gate(): assert sys.modules['torch'] is None\n")
    (session.tree / "no_torch.py").write_text("import sys\nsys.modules['torch'] = None  # importing it raises\n")
    child = session("import torch", "--engine", "compile", "-p", "no_torch", PYTHONPATH=str(session.tree))
    assert child.returncode == 0, child.stdout + child.stderr
    assert closing_line(child).startswith("1 passed in")


def test_the_interpreter_leaves_the_folders_of_other_engines_alone(session):
    for folder in ("compile", "launch"):
        plant(session.tree, folder, "import no_such_module\n")
    child = session("def test_other(): pass\n")
    assert child.returncode == 0, child.stdout
    assert closing_line(child).startswith("1 passed in")


def test_a_file_of_another_engine_is_refused_by_name(session):
    plant(session.tree, "compile", "def test_gate(): assert False\n")
    child = session("", "tests/compile/test_planted.py")
    assert child.returncode != 0
    assert "NOT FOR --engine interpreter: tests/compile/test_planted.py" in child.stdout


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        ((), {"TRITON_FORCE_DISABLE_FP_FUSION": "0"}, "TRITON_FORCE_DISABLE_FP_FUSION is set, but should be unset"),
        (("--engine", "compile"), {"TRITON_INTERPRET": "1"}, "TRITON_INTERPRET is set, but should be unset"),
        (("--engine", "gpu"), {"TRITON_INTERPRET": "0"}, "TRITON_INTERPRET is set, but should be unset"),
        (("-p", "triton"), {}, "triton was imported before TRITON_INTERPRET=1 was set"),
    ],
)
def test_an_environment_that_changes_the_engine_is_refused(session, arguments, environment, message):
    child = session("def test_nothing(): pass\n", *arguments, **environment)
    assert child.returncode == pytest.ExitCode.USAGE_ERROR
    assert message in child.stderr


# Cases


_CASE_TESTS = """
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("twice", [False, True])
def test_case(case, twice): pass
def test_other(): pass
"""


def test_a_case_is_selected_by_its_id(session):
    child = session(_CASE_TESTS, "--case", _FIVE_TOKENS, "--verbose")
    assert child.returncode == 0, child.stdout
    assert closing_line(child).startswith("2 passed, 3 deselected")
    assert f"test_case[False-{_FIVE_TOKENS}] PASSED" in child.stdout


@_WORKERS
def test_a_case_that_does_not_exist_fails_the_session(session, workers):
    child = session(_CASE_TESTS, "--case", _FIVE_TOKENS, "--case", "no-such-case", *workers)
    assert child.returncode == 1
    assert "NO SUCH CASE: no-such-case" in child.stdout


def test_a_failure_of_a_case_is_kept_as_a_bundle(session, tmp_path):
    source = """
@pytest.mark.parametrize("case", CASES)
def test_case(case): assert case.tokens == 1, "the fifth is wrong"
"""
    child = session(source, f"--artifacts={tmp_path}")
    assert child.returncode == 1
    (bundle,) = (tmp_path / "failures").iterdir()
    assert f"python -m nvfp4_suite replay {bundle}" in child.stdout
    assert "the fifth is wrong" in (bundle / "bundle.json").read_text() and (bundle / "inputs.safetensors").is_file()
    assert "sources" in (tmp_path / "environment.json").read_text()
    session("def test_good(): pass\n", f"--artifacts={tmp_path}")
    assert not list((tmp_path / "failures").iterdir()), "that of an earlier session is left"


_RECORDED = """
import torch
from types import SimpleNamespace
from nvfp4_suite.reference import judge
KERNEL = SimpleNamespace(name="mine", promise=None)
@pytest.mark.parametrize(("case", "kernel"), [pytest.param(case, KERNEL, id=case.id) for case in CASES])
def test_case(case, kernel):
    expected = torch.ones(case.tokens, 4)
    judge.bitwise(expected + (torch.arange(4) == 2) * (case.tokens == 5), expected)
def test_tool(): pytest.skip("no tool")
"""


def test_a_session_leaves_what_a_report_needs(session, tmp_path):
    """Its own problems, which kernel a result is of, and where a failing output differs; nothing of an earlier one."""
    written = (f"--artifacts={tmp_path}", f"--junitxml={tmp_path}/junit.xml")
    assert session(_RECORDED, *written, "-n", "1").returncode == 1
    told = json.loads((tmp_path / "session.json").read_text())
    skip = "UNTESTED: tests/planted/test_planted.py::test_tool: Skipped: no tool"
    assert told == {"engine": "interpreter", "tier": "all", "whole": True, "exit": 1, "problems": [skip]}
    results = ElementTree.parse(tmp_path / "junit.xml").iter("testcase")
    kernels = {one.get("name"): [each.get("value") for each in one.iter("property")] for one in results}
    assert kernels == {f"test_case[{_FIVE_TOKENS}]": ["mine"], f"test_case[{_ONE_TOKEN}]": ["mine"], "test_tool": []}
    (bundle,) = (tmp_path / "failures").glob("*/bundle.json")
    assert json.loads(bundle.read_text())["wrong"]["wrong"] == [[0, 0, 1, 0]] * 5
    died = session("import os\ndef test_killer(): os._exit(9)\n", *written)
    assert died.returncode == 9
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"environment.json"}


def test_a_session_says_that_its_tests_were_chosen_by_hand(session, tmp_path):
    session("def test_case(): pass\n", f"--artifacts={tmp_path}", "--tier", "smoke", "tests/planted")
    told = json.loads((tmp_path / "session.json").read_text())
    assert told == {"engine": "interpreter", "tier": "smoke", "whole": False, "exit": 5, "problems": []}


# A skip is not a pass


_SKIPS = {
    "call": "def test_tool(): pytest.skip('no tool')",
    "mark": "@pytest.mark.skipif(True, reason='no tool')\ndef test_tool(): pass",
    "module": "pytest.skip('no tool', allow_module_level=True)",
    "table": "@pytest.mark.parametrize('tool', [])\ndef test_tool(tool): pass",
}


@_WORKERS
def test_a_skip_fails_the_session(session, workers):
    for name, source in _SKIPS.items():
        (session.tree / "tests" / "planted" / f"test_{name}.py").write_text(_HEAD + source)
    child = session("def test_good(): pass\n", *workers)
    assert child.returncode == 1
    assert closing_line(child).startswith("1 passed, 4 skipped")
    for name in _SKIPS:
        assert f"UNTESTED: tests/planted/test_{name}.py" in child.stdout


@pytest.mark.parametrize(
    "choice", [("-k", "tool"), ("tests/planted/test_planted.py::test_tool",)], ids=["-k", "node id"]
)
def test_a_skip_among_tests_chosen_by_hand_does_not(session, choice):
    child = session(_SKIPS["call"], *choice)
    assert child.returncode == 0
    assert closing_line(child).startswith("1 skipped")


def test_an_expected_failure_is_no_skip_and_an_unexpected_pass_fails(session):
    known = "@pytest.mark.xfail(reason='known')\ndef test_known(): assert False\n"
    assert session(known).returncode == 0
    child = session(known.replace("False", "True"))
    assert child.returncode == 1
    assert closing_line(child).startswith("1 failed")


# One file, one name


@_WORKERS
def test_a_file_loaded_under_two_names_fails_the_session(session, workers):
    source = "def test_both():\n    import contract.gpus, nvfp4_suite.contract.gpus\n"
    child = session(source, *workers)
    assert child.returncode == 1
    assert closing_line(child).startswith("1 passed")
    assert "LOADED TWICE: contract/gpus.py as contract.gpus and nvfp4_suite.contract.gpus" in child.stdout


def test_each_tree_tests_itself(session):
    """Also where another checkout comes first in PYTHONPATH: mutants and bisection depend on it."""
    other = copy(session.tree.parent / "other")
    source = f"import nvfp4_suite\ndef test_home(): assert nvfp4_suite.__file__.startswith({str(session.tree)!r})\n"
    assert session(source, PYTHONPATH=str(other)).returncode == 0
