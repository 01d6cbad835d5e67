"""golden/recorded/ as data: digests of real-valued cases, and the rules by which they change. Pure.

There the order of the sums shows, so a digest is that of a case by one kernel on one architecture and speed class under
one Triton: Key. There is a file for each architecture and Triton; in it each entry is one line, by "<case id>/<kernel>/
<speed class>". The plan with its tiles, device, driver, torch and assembler stand beside the digest, not in the key: a
tile that changes must show.
"""

from pathlib import Path
from typing import NamedTuple

from . import codegen, golden_file
from .outcomes import Finding, Outcome, Recording, check_reason

SCHEMA = "recorded.schema.json"

Entries = dict[str, dict]  # by `name`


class Key(NamedTuple):
    """What a digest of a real-valued case belongs to. `speed` is the name of a speed class, `triton` a release."""

    case: str
    kernel: str
    arch: str
    speed: str
    triton: str

    def __str__(self) -> str:
        return "/".join(self)

    @property
    def name(self) -> str:
        """The entry's name in its file."""
        return name(self.case, self.kernel, self.speed)


def name(case: str, kernel: str, speed: str) -> str:
    return f"{case}/{kernel}/{speed}"


def path_of(folder: Path, arch: str, triton: str) -> Path:
    """The file of an architecture and a Triton, in golden/."""
    return folder / "recorded" / arch / f"{triton}.json"


def paths(folder: Path) -> list[Path]:
    """All such files."""
    return sorted(folder.glob("recorded/*/*.json"))


def key_in(path: Path, name: str) -> Key:
    """The key of the entry `name` in the file `path`, which is named for its architecture and its Triton."""
    case, kernel, speed = name.split("/")
    return Key(case, kernel, path.parent.name, speed, path.stem)


def read(path: Path) -> tuple[Entries, list[dict]]:
    """The entries and the changes, oldest first; none where there is no file. Raises Refused for one that is damaged,
    edited by hand, or another architecture's or Triton's."""
    if not path.exists():
        return {}, []
    held = golden_file.load(path)
    try:
        where = held["arch"], held["triton"]
        entries = {one: golden_file.unchecked(path, entry, *where, one) for one, entry in held["entries"].items()}
        changes = [dict(change) for change in held["changes"]]
        last = {change["key"]: change["new"] for change in changes}
        wrong = [one for one, digest in last.items() if one in entries and entries[one]["digest"] != digest]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise golden_file.Damaged(path, f"an entry or a change lacks {error}") from error
    if where != (path.parent.name, path.stem):
        raise golden_file.Damaged(path, f"it says that it is for {where[0]} with Triton {where[1]}")
    if wrong:
        raise golden_file.Damaged(path, f"the changes of {wrong[0]} do not lead to its digest")
    return entries, changes


def text(arch: str, triton: str, entries: Entries, changes: list[dict]) -> str:
    """The whole file as it should be."""
    return golden_file.text(_document(arch, triton, entries, changes))


def write(path: Path, entries: Entries, changes: list[dict]) -> None:
    """Replaces `path` at once. Raises Refused for what the schema does not accept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    golden_file.write(path, _document(path.parent.name, path.stem, entries, changes))


def _document(arch: str, triton: str, entries: Entries, changes: list[dict]) -> dict:
    checked = {one: golden_file.checked(entry, arch, triton, one) for one, entry in entries.items()}
    return {"$schema": f"../{SCHEMA}", "arch": arch, "changes": changes, "entries": checked, "triton": triton}


def tables(folder: Path) -> dict[Key, dict]:
    """Every entry of every file in golden/'s `folder`."""
    return {key_in(path, one): entry for path in paths(folder) for one, entry in read(path)[0].items()}


def conflicts(recording: Recording, entries: Entries) -> list[str]:
    """What each recorded digest that `recording` would change was and becomes, and what differs beside it."""
    lines = []
    for one in _changed(recording, entries):
        lines.append(f"{one}: {recording.engine} gives {recording.recorded[one].digest},")
        lines.append(f"  but recorded is {entries[one]['digest']}; {_difference(entries[one], _entry(recording, one))}")
    return lines


def _changed(recording: Recording, entries: Entries) -> list[str]:
    both = sorted(recording.recorded.keys() & entries.keys())
    return [one for one in both if recording.recorded[one].digest != entries[one]["digest"]]


def _entry(recording: Recording, one: str) -> dict:
    outcome = recording.recorded[one]
    return recording.provenance | {"digest": outcome.digest, "plan": outcome.plan}


def merge(
    recording: Recording, entries: Entries, changes: list[dict], *, reason: str | None, commit: str
) -> tuple[Entries, list[dict]]:
    """The entries and changes to write; a changed digest is kept in the changes, with its `reason` and `commit`.

    Raises Refused where there is one, but no `reason`.
    """
    if reason is None:
        check_reason(conflicts(recording, entries), reason)
    changed = [
        {
            "commit": commit,
            "difference": _difference(entries[one], _entry(recording, one)),
            "key": one,
            "new": recording.recorded[one].digest,
            "old": entries[one]["digest"],
            "reason": reason,
        }
        for one in _changed(recording, entries)
    ]
    return entries | {one: _entry(recording, one) for one in recording.recorded}, [*changes, *changed]


def announce(recording: Recording, entries: Entries, others: dict[Key, dict]) -> list[str]:
    """One line per key that `entries` lacks, and how it stands against the nearest of all `others`, new ones too."""
    lines = []
    new = {one: _entry(recording, one) for one in sorted(recording.recorded.keys() - entries.keys())}
    path = path_of(Path(), recording.engine, recording.triton)
    keys = {one: key_in(path, one) for one in new}
    others = others | {keys[one]: entry for one, entry in new.items()}
    for one, entry in new.items():
        lines.append(f"new {keys[one]}: {entry['digest']}")
        if near := nearest(keys[one], others):
            lines.append(f"  beside {near}: {against(entry, others[near])}")
    return lines


def nearest(key: Key, others: dict[Key, dict]) -> Key | None:
    """The likest other key of the same case: the one that differs in the least, Triton before the rest, kernel last."""

    def distance(other: Key) -> tuple:
        differing = [other[place] != key[place] for place in (1, 2, 3, 4)]  # the worst first
        return sum(differing), differing, other

    same_case = [other for other in others if other.case == key.case and other != key]
    return min(same_case, key=distance, default=None)


def against(entry: dict, other: dict) -> str:
    """How an entry stands against another: whether the digest is the same, and what differs beside it."""
    same = "the same digest" if entry["digest"] == other["digest"] else f"another digest, {other['digest']}"
    return f"{same}; {_difference(other, entry)}"


def _difference(before: dict, now: dict) -> str:
    """What differs of two entries but the digest: "BLOCK_M 16 -> 32, torch 2.11.0 -> 2.13.0"."""
    beside = sorted((before.keys() | now.keys()) - {"digest", "plan"})
    found = [codegen.differences(before["plan"], now["plan"])] if before["plan"] != now["plan"] else []
    found += [f"{fact} {before.get(fact)} -> {now.get(fact)}" for fact in beside if before.get(fact) != now.get(fact)]
    return ", ".join(found) or "nothing else differs"


def replanned(outcomes: dict[str, Outcome], entries: Entries) -> list[str]:
    """A line for each digest that is as recorded although its plan is another: no finding, but news."""
    lines = []
    for one in sorted(outcomes.keys() & entries.keys()):
        outcome, entry = outcomes[one], entries[one]
        if outcome.digest == entry["digest"] and outcome.plan != entry["plan"]:
            lines.append(f"{one}: as recorded, by another plan: {codegen.differences(entry['plan'], outcome.plan)}")
    return lines


def not_run(outcomes: dict[str, Outcome], entries: Entries, speed: str, ids: set[str]) -> list[Finding]:
    """The keys of the cases `ids` and of the speed class that are recorded, but gave no outcome now."""
    fact = "it is recorded, but no kernel promises it there now"
    gone = (one for one in sorted(entries.keys() - outcomes.keys()) if one.split("/")[2] == speed)
    return [Finding("UNTESTED", one, (fact,)) for one in gone if one.split("/")[0] in ids]
