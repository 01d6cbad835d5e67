"""golden/exact.json as data: its form on disk and the rules by which it changes. Pure: neither torch nor triton.

The entries are a dict. A key is "<case id>/<rounding form>"; an entry holds one `digest` for all engines,
`confirmed_by` (engine -> provenance of the last run that gave this digest) and `changes`, oldest first. A GPU counts as
an engine of its own with each Triton: "sm_90 triton 3.8.0".
"""

import copy
from pathlib import Path

from ..contract.case import Case
from . import golden_file
from .outcomes import Finding, Outcome, Recording, check_reason

SCHEMA = "exact.schema.json"

Entries = dict[str, dict]


def key(case: Case, rounding: str) -> str:
    return f"{case.id}/{rounding}"


def case_id(name: str) -> str:
    """The case's part of a key."""
    return name.rsplit("/", 1)[0]


def read(path: Path) -> Entries:
    """The entries of `path`, none where there is no file. Raises Refused for one that is damaged or edited by hand."""
    if not path.exists():
        return {}
    try:
        return {name: _read_entry(path, name, entry) for name, entry in golden_file.load(path)["entries"].items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise golden_file.Damaged(path, f"an entry lacks {error}") from error


def _read_entry(path: Path, name: str, entry: dict) -> dict:
    digest, changes = entry["digest"], entry["changes"]
    confirmed_by = {
        engine: golden_file.unchecked(path, facts, name, engine, digest)
        for engine, facts in entry["confirmed_by"].items()
    }
    if [change["new"] for change in changes] != [*(change["old"] for change in changes[1:]), *[digest] * bool(changes)]:
        raise golden_file.Damaged(path, f"the changes of {name} do not lead to its digest")
    return {"digest": digest, "confirmed_by": confirmed_by, "changes": changes}


def text(entries: Entries) -> str:
    """The whole file as it should be."""
    return golden_file.text(_document(entries))


def write(path: Path, entries: Entries) -> None:
    """Replaces `path` at once. Raises Refused for what its schema, beside it, does not accept."""
    golden_file.write(path, _document(entries))


def _document(entries: Entries) -> dict:
    """Each confirmation is checked by itself, so that git can merge those of two engines."""
    written = {}
    for name, entry in entries.items():
        confirmed_by = {
            engine: golden_file.checked(facts, name, engine, entry["digest"])
            for engine, facts in entry["confirmed_by"].items()
        }
        written[name] = entry | {"confirmed_by": confirmed_by}
    return {"$schema": SCHEMA, "entries": written}


def conflicts(recording: Recording, entries: Entries) -> list[str]:
    """Two lines for each recorded digest that `recording` would change."""
    lines = []
    for name in _changed(recording, entries):
        engines = ", ".join(sorted(entries[name]["confirmed_by"]))
        lines.append(f"{name}: {recording.engine} gives {recording.digests[name]},")
        lines.append(f"  but recorded is {entries[name]['digest']}, confirmed by {engines}")
    return lines


def _changed(recording: Recording, entries: Entries) -> list[str]:
    both = sorted(recording.digests.keys() & entries.keys())
    return [name for name in both if recording.digests[name] != entries[name]["digest"]]


def merge(recording: Recording, entries: Entries, *, reason: str | None, commit: str) -> Entries:
    """`entries` with the confirmations of `recording`, made from the sources of `commit`.

    A digest that differs from the recorded one replaces it, and the confirmations of that go with it. Raises Refused
    where there is one, but no `reason`.
    """
    if reason is None:
        check_reason(conflicts(recording, entries), reason)
    merged, changed = copy.deepcopy(entries), _changed(recording, entries)
    for name, digest in recording.digests.items():
        entry = merged.setdefault(name, {"digest": digest, "confirmed_by": {}, "changes": []})
        if name in changed:
            change = {"old": entry["digest"], "new": digest, "reason": reason, "commit": commit}
            entry |= {"digest": digest, "confirmed_by": {}, "changes": [*entry["changes"], change]}
        entry["confirmed_by"][recording.confirms_as] = recording.provenance
    return merged


def announce(recording: Recording, entries: Entries) -> list[str]:
    """One line per key of `recording` that `entries` lacks; beside it the same case's other rounding forms."""
    lines = []
    for name in sorted(recording.digests.keys() - entries.keys()):
        lines.append(f"new {name}: {recording.digests[name]}")
        for relative in sorted(other for other in entries if case_id(other) == case_id(name)):
            lines.append(f"  beside {relative}: {entries[relative]['digest']}")
    return lines


def not_run(engine: str, outcomes: dict[str, Outcome], entries: Entries, ids: set[str]) -> list[Finding]:
    """The keys of the cases `ids` that `engine` once confirmed and now gave no outcome for: no kernel promises them.

    `engine` is as in `confirmed_by`.
    """
    gone = (name for name in entries.keys() - outcomes.keys() if case_id(name) in ids)
    fact = f"{engine} confirmed it before, but no kernel promises it there now"
    return [Finding("UNTESTED", name, (fact,)) for name in sorted(gone) if engine in entries[name]["confirmed_by"]]
