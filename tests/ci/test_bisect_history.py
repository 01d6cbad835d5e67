"""The commits that a bisect looks through: which there are, what their kernels/ is, and that git is only read."""

import itertools
import os

import pytest

from nvfp4_suite.ci.bisect_history import Repository
from nvfp4_suite.ci.bisect_pack import Packed, pack
from nvfp4_suite.ci.golden_file import Refused

from .planted_history import commit, git


@pytest.fixture
def tree(tmp_path):
    """A repository whose branch main has the commits start, one, page, two; page does not change kernels/."""
    tree = tmp_path / "project"
    (tree / "kernels").mkdir(parents=True)
    git(tmp_path, "init", "--quiet", "--initial-branch=main", str(tree))
    for name in ("start", "one"):
        write(tree, "kernels/a.py", name)
    write(tree, "page.md", "page")
    write(tree, "kernels/a.py", "two")
    return tree


def write(tree, path: str, text: str) -> str:
    (tree / path).write_text(text)
    return commit(tree, text)


def subjects(repository: Repository, history) -> list[str]:
    return [repository.commit(one).subject for one in history.parents]


def test_commits_that_change_kernels_newest_first(tree):
    repository = Repository(tree)
    history = repository.history("main~3", "main")
    assert subjects(repository, history) == ["two", "one"]
    newest, oldest = history.parents
    assert history.parents == {newest: (oldest,), oldest: ()}
    assert (history.good.subject, history.bad.subject) == ("start", "two")


def test_ends_may_be_commits_that_do_not_change_kernels(tree):
    write(tree, "page.md", "page two")
    repository = Repository(tree)
    history = repository.history("main~2", "main")
    assert subjects(repository, history) == ["two"]
    assert history.bad.tree == repository.commit("main~1").tree
    assert [one.subject for one in repository.parents(next(iter(history.parents)))] == ["page"]


@pytest.fixture
def merged(tree):
    """To that, a branch from one with the commits left and right, merged into main, which has had three since."""
    git(tree, "checkout", "--quiet", "-b", "branch", "main~2")
    write(tree, "kernels/b.py", "left")
    write(tree, "kernels/b.py", "right")
    git(tree, "checkout", "--quiet", "main")
    write(tree, "kernels/a.py", "three")
    git(tree, "merge", "--quiet", "--no-ff", "--message", "merge", "branch")
    return tree


def test_a_merged_branch_is_looked_through(merged):
    repository = Repository(merged)
    history = repository.history("main~4", "main")
    assert set(subjects(repository, history)) == {"merge", "three", "two", "right", "left"}
    (merge, before), *_ = history.parents.items()
    assert {repository.commit(one).subject for one in before} == {"three", "right"}
    assert {one.subject for one in repository.parents(merge)} == {"three", "right"}


def test_with_first_parent_a_merged_branch_is_its_merge(merged):
    repository = Repository(merged, first_parent=True)
    history = repository.history("main~4", "main")
    assert subjects(repository, history) == ["merge", "three", "two"]
    assert [one.subject for one in repository.parents(next(iter(history.parents)))] == ["three"]


def test_kernels_are_taken_as_they_were(tree, tmp_path):
    repository = Repository(tree)
    repository.extract(repository.commit("main~2").tree, tmp_path / "old")
    assert [path.name for path in (tmp_path / "old").rglob("*")] == ["kernels", "a.py"]
    assert (tmp_path / "old/kernels/a.py").read_text() == "one"


def test_a_commit_without_kernels_has_an_empty_one(tree, tmp_path):
    git(tree, "rm", "--quiet", "kernels/a.py")
    commit(tree, "none")
    repository = Repository(tree)
    repository.extract(repository.commit("main").tree, tmp_path / "old")
    assert list((tmp_path / "old/kernels").iterdir()) == []


def test_a_project_in_a_folder_of_its_repository(tree, tmp_path):
    (tree / "inner/kernels").mkdir(parents=True)
    first = write(tree, "inner/kernels/c.py", "inner one")
    write(tree, "kernels/a.py", "outer")
    write(tree, "inner/kernels/c.py", "inner two")
    repository = Repository(tree / "inner")
    assert subjects(repository, repository.history(first, "main")) == ["inner two"]
    repository.extract(repository.commit("main").tree, tmp_path / "old")
    assert (tmp_path / "old/kernels/c.py").read_text() == "inner two"


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("nothing", "main", "--good is 'nothing', but should be a revision of this repository$"),
        ("main~1", "v1.0", "--bad is 'v1.0', but should be a revision"),
        ("main", "main", "--good and --bad are both .*, but should be two commits"),
        ("main", "main~1", "--good is .*, but should be an ancestor of --bad, .*; both come from .*"),
        ("branch", "main~1", "should be an ancestor of --bad, .*; both come from .*, which may be a good one"),
        ("alone", "main", r"should be an ancestor of --bad, \w*$"),
        ("main~4", "main~3", "have the same kernels/, so that no commit of it can be to blame"),
    ],
)
def test_ends_that_cannot_be(merged, good, bad, message):
    git(merged, "checkout", "--quiet", "--orphan", "alone")
    commit(merged, "alone")
    with pytest.raises(Refused, match=message):
        Repository(merged).history(good, bad)


def test_a_shallow_clone_is_said_to_be_one(tree, tmp_path):
    git(tmp_path, "clone", "--quiet", "--depth=1", tree.as_uri(), "shallow")
    with pytest.raises(Refused, match=r"--good is 'main~2', .*\(this clone is shallow"):
        Repository(tmp_path / "shallow").history("main~2", "main")


def test_no_repository_and_no_git(tmp_path, monkeypatch):
    with pytest.raises(Refused, match="not a git repository"):
        Repository(tmp_path).history("a", "b")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Refused, match="there is no git here"):
        Repository(tmp_path).history("a", "b")


@pytest.mark.parametrize("first_parent", [False, True])
def test_a_packed_history_is_the_same_without_git(merged, first_parent, tmp_path, monkeypatch):
    repository = Repository(merged, first_parent)
    history = repository.history("main~4", "main")
    file = tmp_path / "history.tar.gz"
    pack(file, repository, history)
    told = {one: (repository.commit(one), repository.parents(one)) for one in history.parents}
    repository.extract(history.bad.tree, tmp_path / "of git")
    monkeypatch.setenv("PATH", "")
    packed = Packed(file)
    assert packed.history == history
    assert {one: (packed.commit(one), packed.parents(one)) for one in packed.history.parents} == told
    packed.extract(history.bad.tree, tmp_path / "packed")
    assert _files(tmp_path / "packed") == _files(tmp_path / "of git") != {}
    for one in (history.good, *itertools.chain(*(before for _, before in told.values()))):
        packed.extract(one.tree, tmp_path / one.id)
        assert _files(tmp_path / one.id)


def _files(folder) -> dict:
    return {path.relative_to(folder): path.read_text() for path in folder.rglob("*.py")}


def test_what_was_not_packed_is_refused(tmp_path):
    (tmp_path / "file").write_text("history")
    for name in ("file", "none"):
        with pytest.raises(Refused, match=f"--packed is .*{name}, but should be a file that --pack wrote: "):
            Packed(tmp_path / name)


def test_git_is_only_read(tree):
    """An index whose times are out of date is what `git status` would write."""
    os.utime(tree / "kernels/a.py", (1, 1))
    (tree / "page.md").write_text("dirty")
    before = {path: path.read_bytes() for path in (tree / ".git").rglob("*") if path.is_file()}
    repository = Repository(tree)
    history = repository.history("main~3", "main")
    repository.parents(history.bad.id)
    assert not repository.changed()
    (tree / "kernels/new.py").touch()
    assert repository.changed()
    assert {path: path.read_bytes() for path in (tree / ".git").rglob("*") if path.is_file()} == before
