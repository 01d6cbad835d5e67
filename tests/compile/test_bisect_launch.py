"""A bisect of machine code, which needs neither torch nor a GPU: over commits, and over releases of Triton."""

import shutil

import pytest

from nvfp4_suite.ci import bisect, bisect_trial
from nvfp4_suite.ci.bisect_subject import LaunchSubject
from nvfp4_suite.ci.bisect_trial import ROOT, Point, Trials
from nvfp4_suite.kernels.releases import TRITONS

from ..ci import fake_triton, planted_history
from ..ci.planted_history import BROKEN, REPAIRED, WAITING, WRONG

LAUNCH = "sum_routes-bf16-block512-4w-1s"


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return planted_history.planted(tmp_path_factory.mktemp("history") / "tree")


@pytest.fixture
def bisected(repository, monkeypatch, capsys):
    """Bisects LAUNCH between two commits of `repository`: the exit code, what it says, and its steps."""
    monkeypatch.setattr(bisect, "ROOT", repository.tree)
    monkeypatch.setattr(bisect_trial, "ROOT", repository.tree)

    def run(good: int, bad: int, *more: str):
        ends = ["--good", repository.commits[good], "--bad", repository.commits[bad]]
        code = bisect.main([*ends, "--launch", LAUNCH, "--arch", "90", *more])
        return code, *capsys.readouterr()

    return run


def test_the_commit_that_changes_the_machine_code_of_a_launch_is_named(repository, bisected):
    """Past commits that do not compile."""
    code, said, steps = bisected(5, WAITING - 1)
    assert code == 0, steps
    assert said.startswith(f"FIRST BAD: {repository.commits[WRONG][:7]}")
    assert "  SASS     ptx, sass\n" in said
    assert f"nox -s compile-gates -- --launch {LAUNCH} --arch 90" in said
    assert "skip" in steps and "does not compile" in steps


def test_the_commit_since_which_a_launch_does_not_compile_is_named(repository, bisected):
    code, said, steps = bisected(BROKEN - 3, REPAIRED - 1, "--runs", "1")
    assert code == 0, steps
    assert said.startswith(f"FIRST BAD: {repository.commits[BROKEN][:7]}")
    assert "bad is   sum_routes on sm_90 does not compile, but should: " in said


def test_the_commit_since_which_a_gate_is_red_is_named(repository, bisected):
    """Not the one before it that changes the machine code as well."""
    code, said, steps = bisected(WRONG - 1, 30, "--runs", "1")
    assert code == 0, steps
    assert said.startswith(f"FIRST BAD: {repository.commits[WAITING][:7]}")
    assert "bad is   sum_routes on sm_90: there are 1 barriers, but should be none\n" in said


def test_kernels_that_todays_list_of_launches_cannot_import(tmp_path):
    """Their launch is today's."""

    def without_plans(tree, folder):
        kernels = ROOT / "kernels"
        (folder / "kernels/device").mkdir(parents=True)
        for name in ("__init__.py", "launch.py", "device/__init__.py", "device/pointwise.py"):
            shutil.copy(kernels / name, folder / "kernels" / name)

    with Trials(tmp_path, without_plans, 600) as trials:
        subject = LaunchSubject(trials, f"sm_90-{LAUNCH}", (9, 0))
        old, today = (subject.found(Point("", "", kernels=tree)) for tree in ("old", None))
        assert old.digest == today.digest is not None
        other = LaunchSubject(trials, "sm_90-another", (9, 0)).found(Point("", "", kernels="old"))
        assert other.unusable == "no gate lists sm_90-another, neither for these kernels nor for today's"


def test_a_launch_that_no_gate_lists(bisected, monkeypatch):
    monkeypatch.setattr(f"{__name__}.LAUNCH", "nothing")
    code, _, steps = bisected(1, 30)
    assert code == 1
    assert "cannot be judged: no gate lists sm_90-nothing" in steps


def test_the_release_that_changes_the_machine_code_is_named(tmp_path, capsys):
    """The installed one stands for all, under their numbers; from the third on, it assembles otherwise."""
    changes = {one: [fake_triton.ANOTHER_ASSEMBLY] if TRITONS.index(one) > 1 else [] for one in TRITONS}
    packages = [f"--packages={fake_triton.fake(tmp_path / one, one, *changes[one])}" for one in TRITONS]
    asked = ["--over", f"triton={','.join(TRITONS)}", *packages, "--launch", LAUNCH, "--arch", "90", "--runs", "1"]
    assert bisect.main(asked) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"FIRST BAD: Triton {TRITONS[2]}\n")
    assert f"good before it, at Triton {TRITONS[1]}\n" in said
    assert "sass" in said


def test_a_release_that_is_not_where_it_should_be(tmp_path, capsys):
    packages = fake_triton.fake(tmp_path, TRITONS[0])
    asked = ["--over", f"triton={TRITONS[1]},{TRITONS[2]}", f"--packages={TRITONS[1]}={packages.partition('=')[2]}"]
    assert bisect.main([*asked, "--launch", LAUNCH, "--arch", "90"]) == 1
    assert f"Triton {TRITONS[1]} should be in {tmp_path}, but {TRITONS[0]} is" in capsys.readouterr().err
