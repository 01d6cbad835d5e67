"""golden/exact.json as data: its form on disk and the rules by which it changes. Pure: neither torch nor triton.

The entries are a dict. A key is "<case id>/<rounding form>"; an entry holds one `digest` for all engines,
`confirmed_by` (engine -> provenance of the last run that gave this digest) and `changes`, oldest first.
"""

import copy
import json
from dataclasses import dataclass
from pathlib import Path

from ..contract.case import Case
from . import golden_file
from .golden_file import Refused

TOOL = "python -m nvfp4_suite.ci.golden"
SCHEMA = "exact.schema.json"

Entries = dict[str, dict]


@dataclass(frozen=True)
class Outcome:
    """What an engine made of one key: its digest, or the problem that left it without one."""

    digest: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Recording:
    """Digests by key as `engine` gave them, and the SHA-256 of the sources that it ran."""

    engine: str
    provenance: dict[str, str]
    sources: str
    digests: dict[str, str]


@dataclass(frozen=True)
class Finding:
    """What is wrong with a key: FAILED, CHANGED, UNTESTED or STALE, and the facts, each one line."""

    status: str
    key: str
    facts: tuple[str, ...] = ()


def key(case: Case, rounding: str) -> str:
    return f"{case.id}/{rounding}"


def case_id(name: str) -> str:
    """The case's part of a key."""
    return name.rsplit("/", 1)[0]


def read(path: Path) -> Entries:
    """The entries of `path`, none where there is no file. Raises Refused if it holds fewer or more than it says."""
    if not path.exists():
        return {}
    document = json.loads(path.read_text(encoding="utf-8"))
    count, entries = document["count"], document["entries"]
    if count != len(entries):
        raise Refused(f"{path.name} says count {count}, but has {len(entries)} entries; only the tool should write it")
    return entries


def text(entries: Entries) -> str:
    """The whole file as it should be."""
    return golden_file.text(_document(entries))


def write(path: Path, entries: Entries) -> None:
    """Replaces `path` at once. Raises Refused for what its schema, beside it, does not accept."""
    golden_file.write(path, _document(entries))


def _document(entries: Entries) -> dict:
    return {"$schema": SCHEMA, "count": len(entries), "entries": entries}


def agreed(first: dict[str, Outcome], second: dict[str, Outcome]) -> dict[str, str]:
    """The digests of two runs in fresh processes. Raises Refused if one has a problem or if they differ."""
    lines = []
    for name in sorted(first.keys() | second.keys()):
        one, two = (run.get(name, Outcome(problem="not run")) for run in (first, second))
        if problem := one.problem or two.problem:
            lines.append(f"{name} fails: {_first_line(problem)}")
        elif one.digest != two.digest:
            lines.append(f"{name} varies: {one.digest} in one fresh process, {two.digest} in the next")
    if lines:
        raise Refused("only outputs that are right and repeat are recorded:\n" + "\n".join(lines))
    return {name: outcome.digest for name, outcome in first.items()}


def _first_line(problem: str) -> str:
    """Judges explain a difference in twenty lines; a test of the case shows them all."""
    return problem.partition("\n")[0]


def merge(recording: Recording, entries: Entries, *, reason: str | None, commit: str) -> Entries:
    """`entries` with the confirmations of `recording`, made from the sources of `commit`.

    A digest that differs from the recorded one needs a `reason`. It then replaces the old one, whose confirmations go
    with it. Raises Refused without a reason, and for a reason where no digest differs.
    """
    changed = [name for name in recording.digests if name in entries and _differs(recording, entries, name)]
    if changed and reason is None:
        raise Refused(_conflict(recording, entries, changed))
    if reason is not None and not (changed and reason.strip()):
        raise Refused(f"--reason is {reason!r}, but should be a text, and only where a recorded digest changes")
    merged = copy.deepcopy(entries)
    for name, digest in recording.digests.items():
        entry = merged.setdefault(name, {"digest": digest, "confirmed_by": {}, "changes": []})
        if name in changed:
            change = {"old": entry["digest"], "new": digest, "reason": reason, "commit": commit}
            entry |= {"digest": digest, "confirmed_by": {}, "changes": [*entry["changes"], change]}
        entry["confirmed_by"][recording.engine] = recording.provenance
    return merged


def _differs(recording: Recording, entries: Entries, name: str) -> bool:
    return recording.digests[name] != entries[name]["digest"]


def _conflict(recording: Recording, entries: Entries, changed: list[str]) -> str:
    lines = ["a recorded digest changes only with --reason TEXT:"]
    for name in sorted(changed):
        engines = ", ".join(sorted(entries[name]["confirmed_by"]))
        lines.append(f"{name}: {recording.engine} gives {recording.digests[name]},")
        lines.append(f"  but recorded is {entries[name]['digest']}, confirmed by {engines}")
    return "\n".join(lines)


def announce(recording: Recording, entries: Entries) -> list[str]:
    """One line per key of `recording` that `entries` lacks; beside it the same case's other rounding forms."""
    lines = []
    for name in sorted(recording.digests.keys() - entries.keys()):
        lines.append(f"new {name}: {recording.digests[name]}")
        for relative in sorted(other for other in entries if case_id(other) == case_id(name)):
            lines.append(f"  beside {relative}: {entries[relative]['digest']}")
    return lines


def compare(outcomes: dict[str, Outcome], entries: Entries) -> list[Finding]:
    """What is wrong with `outcomes`, and which of their keys `entries` lacks."""
    findings = []
    for name, outcome in sorted(outcomes.items()):
        if outcome.problem:
            findings.append(Finding("FAILED", name, (_first_line(outcome.problem),)))
        elif name not in entries:
            findings.append(Finding("UNTESTED", name))
        elif outcome.digest != entries[name]["digest"]:
            facts = (f"recorded {entries[name]['digest']}", f"found    {outcome.digest}")
            findings.append(Finding("CHANGED", name, facts))
    return findings


def not_run(engine: str, outcomes: dict[str, Outcome], entries: Entries, ids: set[str]) -> list[Finding]:
    """The keys of the cases `ids` that `engine` once confirmed and now gave no outcome for: no kernel promises them."""
    gone = (name for name in entries.keys() - outcomes.keys() if case_id(name) in ids)
    fact = f"{engine} confirmed it before, but no kernel promises it there now"
    return [Finding("UNTESTED", name, (fact,)) for name in sorted(gone) if engine in entries[name]["confirmed_by"]]


def stale(entries: Entries, known: set[str]) -> list[Finding]:
    """The keys of `entries` that no case and rounding form has any more."""
    return [Finding("STALE", name) for name in sorted(entries.keys() - known)]
