"""A repository of 30 commits that a test makes of this tree, with known changes of kernels/ at known places."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ..meta.tree import copy

COMMITS = 30
RENAMED, TILE, BROKEN, REPAIRED, WRONG, WAITING = 8, 12, 15, 17, 21, 27  # numbers of commits; the first is 1

_STORE = "    tl.store(out + token * columns + column, total"
_ADD_ONE = "total = tl.where(columns == 16, total + 1.0, total)"  # one case of the tables has a hidden size of 16

# (file in kernels/, what it has once, what it has from that commit on)
CHANGES = {
    RENAMED: [
        ("experts.py", "        return _layer(", "        return _run_layer("),
        ("experts.py", "def _layer(", "def _run_layer("),
    ],
    TILE: [("tuning.py", "PLAIN = Tile(16)", "PLAIN = Tile(16, block_kb=16)")],
    BROKEN: [
        ("device/pointwise.py", "total = tl.zeros((BLOCK,), tl.float32)", "total = tl.zeroes((BLOCK,), tl.float32)")
    ],
    REPAIRED: [("device/pointwise.py", "tl.zeroes", "tl.zeros")],
    WRONG: [("device/pointwise.py", _STORE, f"    {_ADD_ONE}\n{_STORE}")],
    WAITING: [("device/pointwise.py", _STORE, f"    tl.debug_barrier()\n{_STORE}")],  # which gates do not allow there
}
_HARMLESS = ("registry.py", "plan.py", "device/gemm.py", "experts.py")


@dataclass(frozen=True)
class Planted:
    """The repository in `tree`, whose commit number n is `commits[n]`."""

    tree: Path
    commits: dict[int, str]


def planted(tree: Path) -> Planted:
    """Makes the repository in the new folder `tree`."""
    copy(tree)
    git(tree, "init", "--quiet", "--initial-branch=main")
    (tree / ".gitignore").write_text("__pycache__/\n")  # Python may write some wherever it imports from
    commits = {}
    for number in range(1, COMMITS + 1):
        if number > 1:
            change(tree / "kernels", number)
        commits[number] = commit(tree, f"Commit {number}")
    return Planted(tree, commits)


def change(kernels: Path, number: int) -> None:
    """What commit `number` does: a planted change, or a comment somewhere."""
    for file, old, new in CHANGES.get(number, []):
        path = kernels / file
        text = path.read_text()
        assert text.count(old) == 1, (file, old)
        path.write_text(text.replace(old, new))
    if number not in CHANGES:
        with (kernels / _HARMLESS[number % len(_HARMLESS)]).open("a") as file:
            file.write(f"# commit {number}\n")


def commit(tree: Path, subject: str) -> str:
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", subject)
    return git(tree, "rev-parse", "HEAD").strip()


def git(tree: Path, *arguments: str) -> str:
    """Git with no configuration but this."""
    who = {f"GIT_{role}_{what}": "a@b" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    env = os.environ | who | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(
        ["git", "-C", str(tree), *arguments], env=env, check=True, capture_output=True, text=True
    ).stdout
