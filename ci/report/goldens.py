"""What golden/ holds today, and the changes that it keeps with their reasons. Pure: neither torch nor triton."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import codegen, exact, plans_file, recorded
from ..golden_file import Refused


@dataclass(frozen=True)
class Change:
    """One change of what is recorded: `what` it was of, how it differs, a line each, why, and by which commit."""

    what: str
    difference: tuple[str, ...]
    reason: str
    commit: str


@dataclass(frozen=True)
class Goldens:
    """`counts` say how much is recorded, a line each; `changes` go file by file, of one key the newest first."""

    counts: tuple[str, ...]
    changes: tuple[Change, ...]
    damaged: tuple[tuple[str, str], ...]


def read(folder: Path) -> Goldens:
    """All of `folder`; a file that is not there, or not as the tool wrote it, is among the `damaged`."""
    counts, changes, damaged = [], [], []
    files = [folder / "exact.json", *recorded.paths(folder), folder / "plans.json"]
    for path in [*files, *sorted((folder / "codegen").glob("[0-9]*.json"))]:
        name = path.relative_to(folder).as_posix()
        try:
            if not path.is_file():
                raise Refused("it is not there")
            line, found = _READERS[name.partition("/")[0]](path)
            counts.append(line)
            changes += found
        except (Refused, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            damaged.append((f"{folder.name}/{name}", f"{type(error).__name__}: {error}"))
    return Goldens(tuple(counts), tuple(changes), tuple(damaged))


def _exact(path: Path) -> tuple[str, list[Change]]:
    """Digests that changed for one reason in one commit are one change."""
    entries, found = exact.read(path), {}
    engines = Counter(engine for entry in entries.values() for engine in entry["confirmed_by"])
    unseen = sum(not any(engine.startswith("sm_") for engine in entry["confirmed_by"]) for entry in entries.values())
    by = ", ".join(f"{engine} {number}" for engine, number in sorted(engines.items())) or "nobody"
    for key, entry in entries.items():
        for change in entry["changes"]:
            line = f"{key}: {change['old'][:12]} -> {change['new'][:12]}"
            found.setdefault((change["commit"], change["reason"]), []).append(line)
    changes = [Change("digests", tuple(lines), reason, commit) for (commit, reason), lines in found.items()]
    line = f"{len(entries)} digests of order-free cases, confirmed by: {by}; unseen on hardware: {unseen}"
    return line, changes[::-1]


def _recorded(path: Path) -> tuple[str, list[Change]]:
    """Digests of real-valued cases, of one architecture and Triton."""
    entries, changes = recorded.read(path)
    where, found = f"{path.parent.name} with Triton {path.stem}", []
    for one in reversed(changes):
        line = f"{one['key']}: {one['old'][:12]} -> {one['new'][:12]}; {one['difference']}"
        found.append(Change(f"digests of {where}", (line,), one["reason"], one["commit"]))
    return f"{len(entries)} digests of real-valued cases on {where}", found


def _plans(path: Path) -> tuple[str, list[Change]]:
    cells, changes = plans_file.read(path)
    cards = len({cell.card for cell in cells})
    return f"{len(cells):,} plans of {cards} cards", list(_kept("plans", changes))


def _codegen(path: Path) -> tuple[str, list[Change]]:
    lines, changes = codegen.read(path)
    return f"{len(lines):,} launches as Triton {path.stem} compiles them", list(
        _kept(f"code of Triton {path.stem}", changes)
    )


_READERS = {"exact.json": _exact, "recorded": _recorded, "plans.json": _plans, "codegen": _codegen}


def _kept(what: str, changes: list[dict]) -> Iterator[Change]:
    for change in reversed(changes):
        yield Change(what, tuple(change["difference"]), change["reason"], change["commit"])
