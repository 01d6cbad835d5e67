"""`python -m nvfp4_suite.ci.bisect` in a repository with planted commits: what it names, says and leaves alone."""

import json
from pathlib import Path

import pytest

from nvfp4_suite.cases import layers
from nvfp4_suite.ci import bisect, bisect_changes, bisect_trial
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.releases import TRITONS

from ..meta.tree import run_python
from . import fake_triton, planted_history
from .planted_history import TILE, WRONG, git

WRONG_CASE = "orderfree-e2k1h16i16-t3-random-silu-bf16"  # the one that commit WRONG breaks
REAL_CASE = Case(LayerShape(1, 1, 1024, 32), 16, inputs="random", dtype="fp16")  # its K is so long that tiles show


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """The planted history, in a tree that is dirty: kernels/ cannot even be imported."""
    found = planted_history.planted(tmp_path_factory.mktemp("history") / "tree")
    (found.tree / "kernels/registry.py").write_text("def broken(:")
    return found


def bisected(repository, *arguments: str):
    home = repository.tree.parent  # where facts of the gates are kept
    where = {"PYTHONPATH": str(repository.tree), "XDG_CACHE_HOME": str(home), "OMP_NUM_THREADS": "1"}
    return run_python("-P", "-m", "nvfp4_suite.ci.bisect", *arguments, cwd=repository.tree, **where)


@pytest.fixture
def bisect_here(repository, monkeypatch):
    """`bisect.main` in this process, in that repository."""
    monkeypatch.setattr(bisect, "ROOT", repository.tree)
    monkeypatch.setattr(bisect_trial, "ROOT", repository.tree)
    return bisect.main


@pytest.fixture
def no_code(monkeypatch):
    """Leaves out how the machine code differs, which takes long to compile."""
    monkeypatch.setattr(bisect_changes, "_code", lambda *of: ["left out"])


def between(repository, first: int, last: int) -> list[str]:
    return ["--good", repository.commits[first], "--bad", repository.commits[last]]


def state(tree: Path) -> tuple[str, dict]:
    files = [path for path in tree.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return git(tree, "status", "--porcelain"), {path: path.read_bytes() for path in files}


def test_the_commit_that_breaks_one_case_is_named(repository, tmp_path):
    """By the kernel that fails there; past commits that do not run, one that renames a function and one that is right.

    Neither the checkout nor the repository is touched.
    """
    before = state(repository.tree)
    child = bisected(repository, *between(repository, 1, 30), "--case", WRONG_CASE, "--artifacts", str(tmp_path))
    assert child.returncode == 0, child.stderr
    assert "kernels/ has changes here that are in no commit" in child.stderr
    lines = child.stdout.splitlines()
    assert lines[0].startswith(f"FIRST BAD: {repository.commits[WRONG][:7]}")
    assert f"Commit {WRONG} (a@b, " in lines[0]
    assert "bad is   the output differs from the expected bits in 48 of 48 elements" in child.stdout
    assert "plan     as before" in child.stdout
    assert "SASS     sm_80 sum_routes: " in child.stdout
    assert f"nox -s tests -- --case {WRONG_CASE}" in lines[-1]
    _is_told(json.loads((tmp_path / "bisect.json").read_text()), repository)
    assert state(repository.tree) == before


def _is_told(told: dict, repository) -> None:
    """What bisect.json has of it."""
    assert told["verdict"] == "found"
    assert [one["id"] for one in told["first_bad"]] == [repository.commits[WRONG]]
    assert told["last_good"]["id"] == repository.commits[WRONG - 1]
    steps = told["steps"]
    ends = [(step["what"], step["id"]) for step in steps[:6]]
    assert ends == [
        (f"{name} end, {n} of 3", repository.commits[number])
        for name, number in (("good", 1), ("bad", 30))
        for n in (1, 2, 3)
    ]
    skipped = [step for step in steps if step["verdict"] == "skip"]
    assert skipped and all("zeroes" in step["found"]["failure"]["text"] for step in skipped)
    assert [step["verdict"] for step in steps[-2:]] == ["good", "bad"]
    assert all("\n" in step["found"]["failure"]["text"] for step in steps if step["verdict"] == "bad")


def test_the_commit_that_changes_a_tile_is_named_by_its_digest(repository, bisect_here, no_code, capsys, monkeypatch):
    """The output is right everywhere, so that no judge finds it."""
    monkeypatch.setattr(layers, "ALL", (*layers.ALL, REAL_CASE))
    asked = (*between(repository, TILE - 2, TILE + 2), "--case", REAL_CASE.id, "--digest", "--runs", "1")
    assert bisect_here([*asked]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"FIRST BAD: {repository.commits[TILE][:7]}")
    assert "gate_up: BLOCK_KB 32 -> 16\n" in said.out
    assert " fails " not in said.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--good", "a", "--case", "x"], 2, "--good and --bad should both be given"),
        (["--case", "x"], 2, "--good and --bad should be given, or --packed, or --over"),
        (["--good", "a", "--bad", "b", "--over", "triton=3.8.0,3.9.0", "--case", "x"], 2, "or --over"),
        (["--good", "a", "--bad", "b"], 2, "either --case should be given, or --launch"),
        (["--good", "a", "--bad", "b", "--launch", "x"], 2, "--launch needs --arch"),
        (["--good", "a", "--bad", "b", "--launch", "x", "--arch", "90", "--digest"], 2, "--launch takes no --kernel"),
        (["--packed", "f", "--over", "triton=3.8.0,3.9.0", "--case", "x"], 2, "or --packed, or --over"),
        (["--good", "a", "--bad", "b", "--pack", "f", "--case", "x"], 2, "--pack takes --good, --bad"),
        (["--over", "triton=3.8.0,3.9.0", "--triton", "3.8.0", "--case", "x"], 2, "--over takes no --triton"),
        (["--good", "a", "--bad", "b", "--case", "x", "--runs", "0"], 2, "--runs should be at least 1"),
        (["--good", "a", "--bad", "HEAD", "--case", WRONG_CASE], 1, "--good is 'a', but should be a revision"),
        (["--good", "HEAD~1", "--bad", "HEAD", "--case", "ordrfree"], 1, "--case is 'ordrfree', but should be the id"),
        (["--over", "triton=3.8.0", "--case", WRONG_CASE], 1, "but should be triton= and two or more of 3.6.0,3.7.1"),
        (["--over", "cuda=3.8.0,3.9.0", "--case", WRONG_CASE], 1, "but should be triton= and two or more of"),
        (["--over", "triton=3.8.0,3.9.0", "--packages", "3.9.0=x", "--case", WRONG_CASE], 1, "--packages is '3.9.0=x'"),
        (
            ["--good", "HEAD~1", "--bad", "HEAD", "--launch", "x", "--arch", "1"],
            1,
            "--arch is '1', but should be one of 80, 86",
        ),
    ],
)
def test_wrong_arguments(bisect_here, arguments, code, message, tmp_path, capsys):
    try:
        found = bisect_here([*arguments, "--artifacts", str(tmp_path)])
    except SystemExit as error:
        found = error.code
    assert (found, message in capsys.readouterr().err) == (code, True)
    if code == 1:
        told = json.loads((tmp_path / "bisect.json").read_text())
        assert told["verdict"] == "refused" and message in told["why"]


def test_a_release_of_triton_that_computes_otherwise_is_named(no_code, tmp_path, capsys):
    """With the kernels of this tree, in the interpreter of each release."""
    here = fake_triton.installed()
    releases = [here, *(one for one in TRITONS if one != here)][:2]
    package = fake_triton.fake(tmp_path, releases[1], fake_triton.ANOTHER_DOT)
    asked = ["--over", f"triton={','.join(releases)}", f"--packages={package}", "--case", WRONG_CASE, "--runs", "1"]
    assert bisect.main(asked) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"FIRST BAD: Triton {releases[1]}\n")
    assert f"good before it, at Triton {here}\n" in said
    assert "plan     as before\n" in said
