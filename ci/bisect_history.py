"""The commits between two revisions that change kernels/, and those kernels, by git. Nothing here writes to a checkout.

A step takes kernels/ alone from a commit. So commits count by their tree of kernels/, and git leaves out those that do
not change it (`git log` calls that history simplification).
"""

import os
import subprocess
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from .bisect_search import Parents
from .golden_file import Refused

FOLDER = "kernels"
_FIELDS = "%h%x00%s%x00%an, %as"


@dataclass(frozen=True)
class Commit:
    """`id` is the whole hash, `tree` that of its kernels/, of nothing where it has no such folder."""

    id: str
    name: str
    subject: str
    by: str
    tree: str


@dataclass(frozen=True)
class History:
    """Two commits, and of each commit between them that changes kernels/, newest first, those before it that do."""

    good: Commit
    bad: Commit
    parents: Parents


class Repository:
    """The git repository that has `root`, a tree of the project, somewhere inside.

    With `first_parent`, a merged branch is one commit, the merge.
    """

    def __init__(self, root: Path, first_parent: bool = False):
        self.root, self.first_parent = root, first_parent

    def history(self, good: str, bad: str) -> History:
        """What lies between.

        Raises Refused for what is no revision, where `good` is no ancestor of `bad`, and where nothing lies between.
        """
        ends = self.commit(good, "--good"), self.commit(bad, "--bad")
        self._check_order(*ends)
        simplified = ["--first-parent"] if self.first_parent else []
        between = ["rev-list", "--topo-order", "--parents", *simplified, f"{ends[0].id}..{ends[1].id}"]
        lines = self._git(*between, "--", FOLDER).splitlines()
        if not lines or ends[0].tree == ends[1].tree:
            raise Refused(
                f"{ends[0].name} and {ends[1].name} have the same {FOLDER}/, so that no commit of it can be to blame: "
                "what changed is in other rooms, in the environment or in Triton (--over triton=...)"
            )
        listed = {point: tuple(before) for point, *before in map(str.split, lines)}
        parents = {point: tuple(one for one in before if one in listed) for point, before in listed.items()}
        return History(*ends, parents)

    def commit(self, revision: str, argument: str = "the revision") -> Commit:
        """The commit that `revision` names. Raises Refused where it names none; `argument` is who did."""
        found = self._found("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
        if not found:
            raise Refused(f"{argument} is {revision!r}, but should be a revision of this repository{self._shallow()}")
        name, subject, by = self._git("show", "--no-patch", f"--format={_FIELDS}", found).rstrip("\n").split("\0")
        return Commit(found, name, subject, by, self._tree(found))

    def parents(self, commit: str) -> list[Commit]:
        listed = self._git("rev-parse", f"{commit}^@").split()
        return [self.commit(one) for one in (listed[:1] if self.first_parent else listed)]

    def extract(self, tree: str, folder: Path) -> None:
        """The files of `tree`, one of kernels/, as FOLDER/kernels."""
        where = self._git("rev-parse", "--absolute-git-dir").strip()  # in a subfolder, `archive` wants a tree of that
        packed = self._bytes(f"--git-dir={where}", "archive", f"--prefix={FOLDER}/", tree)
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")

    def changed(self) -> bool:
        """Whether kernels/ has changes here that are in no commit."""
        return bool(self._git("status", "--porcelain", "--", FOLDER))

    def _tree(self, commit: str) -> str:
        listed = self._git("ls-tree", "-d", commit, FOLDER).split()
        return listed[2] if listed else self._git("hash-object", "-t", "tree", os.devnull).strip()

    def _check_order(self, good: Commit, bad: Commit) -> None:
        if good.id == bad.id:
            raise Refused(f"--good and --bad are both {good.name}, but should be two commits")
        base = self._found("merge-base", good.id, bad.id)
        if good.id != base:
            common = f"; both come from {self.commit(base).name}, which may be a good one" if base else self._shallow()
            raise Refused(f"--good is {good.name}, but should be an ancestor of --bad, {bad.name}{common}")

    def _shallow(self) -> str:
        shallow = self._git("rev-parse", "--is-shallow-repository").strip() == "true"
        return " (this clone is shallow: `git fetch --unshallow` brings the rest)" if shallow else ""

    def _found(self, *arguments: str) -> str:
        """What git finds; "" where it finds nothing, of which it says nothing."""
        run = self._run(*arguments)
        return "" if run.returncode else run.stdout.decode().strip()

    def _git(self, *arguments: str) -> str:
        return self._bytes(*arguments).decode(errors="replace")

    def _bytes(self, *arguments: str) -> bytes:
        run = self._run(*arguments)
        if run.returncode:
            raise Refused(f"git {arguments[0]} fails: {run.stderr.decode(errors='replace').strip()}")
        return run.stdout

    def _run(self, *arguments: str) -> subprocess.CompletedProcess:
        env = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}  # or `status` would write to the index
        try:
            return subprocess.run(["git", "-C", str(self.root), *arguments], env=env, capture_output=True)
        except FileNotFoundError as error:
            raise Refused("there is no git here, which has the history; --packed brings one") from error
