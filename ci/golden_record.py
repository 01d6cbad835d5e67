"""Records digests: those of order-free cases into golden/exact.json, a GPU's real-valued ones into golden/recorded/."""

import argparse
from pathlib import Path

from ..contract.case import Case
from . import exact, golden_due, golden_file, golden_work, outcomes, provenance, recorded, recording_file
from .golden_due import Task
from .golden_work import Run
from .outcomes import TOOL, Outcome, Recording, Refused

EXACT = "exact.json"


def record(options: argparse.Namespace, root: Path, cases: tuple[Case, ...]) -> int:
    """Merges an engine's digests, computed here or read from a recording, into the tree at `root`.

    Outputs that fail or vary are refused by name, and the others recorded; the exit code is 1 then.
    """
    provenance.refuse_in_ci()
    sources, refused = provenance.sources_digest(root), []
    commit = None if options.out else provenance.clean_commit(root)
    if options.source:
        found = recording_file.read(options.source, sources)
    else:
        found, refused = _recorded(options.engine, cases, root, sources)
    if options.out:
        recording_file.write(options.out, found)
        print(f"{_counted(found)} in {options.out}; next: {TOOL} record --from {options.out.name}")
    else:
        with golden_file.locked(root / "golden"):
            lines = _merge(found, root, commit, options.reason)
        print("\n".join([*lines, f"{_counted(found)} recorded in golden/"]))
    if refused:
        raise Refused("\n".join(["these outputs, as only what is right and repeats is recorded:", *refused]))
    return 0


def _counted(found: Recording) -> str:
    more = f", {len(found.recorded)} of real-valued cases with Triton {found.triton}" if found.recorded else ""
    return f"{len(found.digests)} digests of order-free cases confirmed by {found.confirms_as}{more}"


def _recorded(engine: str, cases: tuple[Case, ...], root: Path, sources: str) -> tuple[Recording, list[str]]:
    """What two runs in fresh processes agree on, judged, see recording.py; and a line for each other output."""
    first, second = golden_work.runs(engine, cases, 2)
    digests, refused = outcomes.agreed(exact_of(first), exact_of(second))
    real, more = outcomes.agreed(recorded_of(first), recorded_of(second))
    refused += more
    if not first.outcomes:
        raise Refused(f"{engine} owes no digest of these cases, so there is nothing to record")
    if not digests and not real:
        raise Refused("\n".join(["all outputs, as only what is right and repeats is recorded:", *refused]))
    if provenance.sources_digest(root) != sources:
        raise Refused("the sources were changed while they ran, but should stay as they are until the end")
    digests = {name: outcome.digest for name, outcome in digests.items()}
    return Recording(first.engine.name, first.engine.facts, sources, digests, real), refused


def exact_of(run: Run) -> dict[str, Outcome]:
    """The outcomes of order-free cases by their keys: what all kernels that owe one gave."""
    found: dict[str, Outcome] = {}
    for task, outcome in run.outcomes.items():
        if task.case.inputs == "orderfree":
            name = exact.key(task.case, task.rounding)
            found[name] = _both(found[name], task, outcome) if name in found else _named(task, outcome)
    return found


def _named(task: Task, outcome: Outcome) -> Outcome:
    return Outcome(outcome.digest, outcome.problem and f"{task.kernel or 'reference'}: {outcome.problem}")


def _both(before: Outcome, task: Task, outcome: Outcome) -> Outcome:
    """Two kernels' outcomes as one: a problem of either, or the digest that they have in common."""
    now = _named(task, outcome)
    if before.problem or now.problem:
        return Outcome(problem=before.problem or now.problem)
    if before.digest != now.digest:
        return Outcome(problem=f"{task.kernel} gives {now.digest}, but others {before.digest}")
    return before


def recorded_of(run: Run) -> dict[str, Outcome]:
    """The outcomes of real-valued cases by their names in golden/recorded/."""
    return {
        recorded.name(task.case.id, task.kernel, run.engine.speed): outcome
        for task, outcome in run.outcomes.items()
        if task.case.inputs == "random"
    }


def _merge(found: Recording, root: Path, commit: str, reason: str | None) -> list[str]:
    """Writes both kinds, and says what is new. Raises Refused, before it writes, for what the rules forbid."""
    _refuse_not_owed(found)
    folder = root / "golden"
    entries = exact.read(folder / EXACT)
    refuse_lost(root, folder / EXACT, entries, golden_due.known_exact())
    real, changes = {}, []
    if found.recorded:
        path = recorded.path_of(folder, found.engine, found.triton)
        real, changes = recorded.read(path)
        refuse_lost(root, path, real, golden_due.known_recorded(found.engine))
    outcomes.check_reason(exact.conflicts(found, entries) + recorded.conflicts(found, real), reason)
    lines = exact.announce(found, entries)
    if found.recorded:
        lines += recorded.announce(found, real, recorded.tables(folder))
        recorded.write(path, *recorded.merge(found, real, changes, reason=reason, commit=commit))
    exact.write(folder / EXACT, exact.merge(found, entries, reason=reason, commit=commit))
    return lines


def _refuse_not_owed(found: Recording) -> None:
    """Raises Refused for digests that nothing owes: of no case, or of a kernel whose sums are in any order."""
    lines = [f"{name}: no case has it" for name in sorted(found.digests.keys() - golden_due.known_exact())]
    if found.recorded:
        lines += _not_owed(found)
    if lines:
        raise Refused("only digests that are owed are recorded:\n" + "\n".join(lines))


def _not_owed(found: Recording) -> list[str]:
    from ..kernels.registry import KERNELS

    lines = []
    for name in sorted(found.recorded.keys() - golden_due.known_recorded(found.engine)):
        kernel = name.split("/")[1]
        if kernel in KERNELS and not KERNELS[kernel].promise.repeatable:
            lines.append(f"{name}: {kernel} is declared to add in any order, so that its digest says nothing")
        else:
            lines.append(f"{name}: no case and kernel owe it on {found.engine}")
    return lines


def refuse_lost(root: Path, path: Path, entries: dict[str, dict], known: set[str]) -> None:
    """Raises Refused where `path` lacks entries that it has in the commit: recording would make new ones of them,
    without their history. Those that are not `known` any more may go."""
    if lost := sorted(provenance.committed_entries(root, path) & known - entries.keys()):
        raise Refused(f"{path.name} lacks {', '.join(lost)}, which the commit has; take it from git again")
