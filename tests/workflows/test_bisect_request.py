"""What a bisect may be asked for: commits of the default branch's own history, and what the tables know."""

import json
import os
import subprocess
from argparse import Namespace
from pathlib import Path

import pytest

from nvfp4_suite.ci import bisect_request, runners
from nvfp4_suite.ci.bisect_request import request
from nvfp4_suite.ci.runners import Unknown

CASE = "orderfree-e4k2h48i80-t5-random-silu-bf16"
NO_COMMITS = {"good": "", "bad": ""}
NOBODY = {f"GIT_{who}_{what}": "x@x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(folder: Path, *arguments: str) -> str:
    env = os.environ | NOBODY
    command = ["git", "-C", str(folder), "-c", "init.defaultBranch=main", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout.strip()


def commit(folder: Path, message: str) -> str:
    git(folder, "commit", "--allow-empty", "--quiet", "-m", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture(scope="module")
def history(tmp_path_factory) -> Namespace:
    """A clone at main, of four commits; it also holds a branch's commit and, by its number alone, a fork's."""
    folder = tmp_path_factory.mktemp("history")
    origin, fork, clone = folder / "origin", folder / "fork", folder / "clone"
    git(folder, "init", "--quiet", str(origin))
    main = [commit(origin, str(number)) for number in range(4)]
    git(folder, "clone", "--quiet", str(origin), str(fork))
    foreign = commit(fork, "of a fork")
    git(origin, "checkout", "--quiet", "-b", "branch", main[1])
    branch = commit(origin, "of a branch")
    git(origin, "checkout", "--quiet", "main")
    git(folder, "clone", "--quiet", str(origin), str(clone))
    git(clone, "fetch", "--quiet", str(fork), foreign)  # as GitHub serves it: by number, from the same repository
    return Namespace(root=clone, main=main, branch=branch, fork=foreign)


def asked(history: Namespace, **changes: str) -> dict[str, str]:
    names = ("good", "bad", "case", "kernel", "engine", "runner", "over", "launch", "arch")
    right = {"good": history.main[0], "bad": history.main[3], "case": CASE, "engine": "gpu", "runner": "h200"}
    return request(Namespace(**dict.fromkeys(names, "") | right | changes), history.root)


def test_a_case_runs_on_the_runner_that_is_named(history):
    found = asked(history, good=history.main[1][:8], kernel="prefill_w4a16")
    h200 = next(runner for runner in runners.read() if runner.name == "h200")
    assert json.loads(found["labels"]) == list(h200.labels)
    ends = f"--good {history.main[1]} --bad {history.main[3]}"
    assert found["arguments"] == f"{ends} --case {CASE} --kernel prefill_w4a16 --engine gpu"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine": "interpreter", "runner": ""}, f"--case {CASE} --engine interpreter"),
        ({"case": "", "launch": "gate_up-w4a16_gemm-m16", "arch": "120"}, "--launch gate_up-w4a16_gemm-m16 --arch 120"),
        (
            {"case": "", "launch": "down-w4a16_gemm-m16", "arch": "90", "over": "triton=3.6.0,3.8.0"} | NO_COMMITS,
            "--over triton=3.6.0,3.8.0 --launch down-w4a16_gemm-m16 --arch 90",
        ),
    ],
)
def test_what_needs_no_gpu_runs_on_githubs_own_machine(history, changes, words):
    found = asked(history, **changes)
    assert json.loads(found["labels"]) == [runners.HOSTED]
    assert found["arguments"].endswith(words)


@pytest.mark.parametrize("end", ["good", "bad"])
def test_a_commit_of_a_fork_is_refused(history, end):
    """It is here, whole, and is still nobody's but the fork's."""
    assert git(history.root, "cat-file", "-t", history.fork) == "commit"
    with pytest.raises(Unknown, match=f"{end} is {history.fork}, but should be in the history of the default branch"):
        asked(history, **{end: history.fork})


def test_a_commit_of_another_branch_is_refused(history):
    with pytest.raises(Unknown, match="but should be in the history of the default branch"):
        asked(history, bad=history.branch)


@pytest.mark.parametrize(
    "revision", ["main", "HEAD", "origin/branch", "--output=x", "", "a" * 6, "A" * 40, "deadbee~1", "x y", "$(id)"]
)
def test_only_numbers_of_commits_are_taken(history, revision):
    with pytest.raises(Unknown, match=r"good is .*, but should be a commit's number"):
        asked(history, good=revision)


def test_a_number_that_is_no_commit_is_refused(history):
    tree = git(history.root, "rev-parse", "HEAD^{tree}")
    for revision in ("0" * 40, tree):
        with pytest.raises(Unknown, match="but no commit, or several, begin so"):
            asked(history, good=revision)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"case": "orderfree-nobody"}, "case is 'orderfree-nobody', but should be the id of a case"),
        ({"case": ""}, "case is '' and launch '', but one of them should be named"),
        ({"launch": "gate_up-w4a16_gemm"}, "but one of them should be named"),
        ({"kernel": "mine; id"}, "kernel is 'mine; id', but should be of auto"),
        ({"engine": "cpu"}, "engine is 'cpu', but should be of gpu, interpreter"),
        ({"runner": "h100"}, "runner is 'h100', but should be of h200"),
        ({"runner": ""}, "runner is '', but should be of h200"),
        ({"over": "triton=3.5.0"} | NO_COMMITS, "over is 'triton=3.5.0', but should be triton= and some of 3.6.0"),
        ({"over": "torch=2.0"} | NO_COMMITS, "over is 'torch=2.0'"),
        ({"over": "triton=3.8.0,3.9.0"}, "but good and bad are named too"),
        ({"case": "", "launch": "-x", "arch": "120"}, "launch is '-x'"),
        ({"case": "", "launch": "a b", "arch": "120"}, "launch is 'a b'"),
        ({"case": "", "launch": "gate_up", "arch": "91"}, "arch is '91', but should be of 80"),
    ],
)
def test_what_no_table_knows_is_refused(history, changes, message):
    with pytest.raises(Unknown, match=message):
        asked(history, **changes)


def test_good_comes_before_bad(history):
    for good, bad in ((3, 0), (2, 2)):
        with pytest.raises(Unknown, match="but should be an ancestor of bad"):
            asked(history, good=history.main[good], bad=history.main[bad])


def test_the_command_puts_out_what_it_found_or_nothing(history, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bisect_request, "request", lambda options: asked(history, good=options.good))
    file = tmp_path / "output"
    assert bisect_request.main([f"--good={history.fork}", "--output", str(file)]) == 1
    assert not file.exists() and capsys.readouterr().err.startswith("refused: good is")
    assert bisect_request.main([f"--good={history.main[0]}", "--output", str(file)]) == 0
    assert file.read_text().splitlines()[0].startswith('labels=["self-hosted"')
