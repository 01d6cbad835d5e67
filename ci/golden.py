"""Verifies and records golden/: exact.json, one digest per order-free case for all engines, and plans.json, what
dispatch chooses on many cards.

    python -m nvfp4_suite.ci.golden verify [--engine reference|interpreter|gpu] [--case ID ...]
    python -m nvfp4_suite.ci.golden record --engine E [--case ID ...] [--reason TEXT]
    python -m nvfp4_suite.ci.golden record --engine E --out FILE      on a host without git
    python -m nvfp4_suite.ci.golden record --from FILE [--reason TEXT]
    python -m nvfp4_suite.ci.golden prune                             removes what no case has any more
    python -m nvfp4_suite.ci.golden diff                              how plans differ from the recorded ones
    python -m nvfp4_suite.ci.golden record --plans [--reason TEXT]

Exit code 0: all is as recorded, or recorded. 1: it is not, or the rules refuse. 2: wrong arguments.
"""

import argparse
import dataclasses
import json
import sys
from collections import Counter
from pathlib import Path

from ..contract.case import Case
from . import exact, golden_junit, plans, plans_diff, plans_file, provenance, recording
from .exact import Recording, Refused

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "golden" / "exact.json"
PLANS = ROOT / "golden" / "plans.json"


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if getattr(options, "source", None) and (options.out or options.case):
        parser.error("--from takes neither --out nor --case: a recording is merged as it is")
    if getattr(options, "plans", False) and (options.out or options.case):
        parser.error("--plans takes neither --out nor --case: all plans are recorded, and need no engine")
    try:
        return options.command(options)
    except Refused as refusal:
        print(f"refused: {refusal}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=exact.TOOL, description="verify and record golden/")
    commands = parser.add_subparsers(required=True, metavar="verify | record | prune | diff")
    verify_parser = commands.add_parser("verify", help="recompute the digests and compare")
    verify_parser.set_defaults(command=verify)
    verify_parser.add_argument("--engine", choices=recording.ENGINES, default="reference", help="default: reference")
    verify_parser.add_argument("--junit", type=Path, metavar="FILE", help="write the findings for a report")
    record_parser = commands.add_parser("record", help="add an engine's confirmations")
    record_parser.set_defaults(command=record)
    source = record_parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--engine", choices=recording.ENGINES, help="what computes the digests")
    source.add_argument("--from", dest="source", type=Path, metavar="FILE", help="merge what --out wrote elsewhere")
    source.add_argument("--plans", action="store_true", help="record golden/plans.json, which needs no engine")
    target = record_parser.add_mutually_exclusive_group()
    target.add_argument("--out", type=Path, metavar="FILE", help="write a recording instead of golden/; needs no git")
    target.add_argument("--reason", metavar="TEXT", help="why digests or plans change; kept beside them")
    for one in (verify_parser, record_parser):
        one.add_argument("--case", action="append", metavar="ID", help="only the case of this id; repeatable")
    commands.add_parser("prune", help="remove entries that no case has any more").set_defaults(command=prune)
    commands.add_parser("diff", help="how plans differ from the recorded ones").set_defaults(command=diff)
    return parser


def verify(options: argparse.Namespace) -> int:
    """Recomputes digests on one engine and compares; without --case, also looks for keys that no case has."""
    if options.junit:
        options.junit.unlink(missing_ok=True)  # or an earlier one would pass for this one's, should it be refused
    entries = exact.read(GOLDEN)
    cases = _cases(options.case)
    run = recording.run_in_fresh_process(options.engine, cases)
    outcomes = run.outcomes
    findings = exact.compare(outcomes, entries) + exact.not_run(run.engine, outcomes, entries, {c.id for c in cases})
    if not options.case:
        findings += exact.stale(entries, _known_keys())
    if options.junit:
        golden_junit.write(options.junit, run, findings, options.engine)
    _print_findings(findings, options.engine)
    _print_totals(findings, outcomes, entries)
    return 1 if findings or not outcomes else 0


def record(options: argparse.Namespace) -> int:
    """Merges an engine's digests, computed here or read from a recording, into golden/exact.json."""
    provenance.refuse_in_ci()
    if options.plans:
        return _record_plans(options.reason)
    if options.out:
        _write_recording(options.out, _recorded(options))
        return 0
    commit = provenance.clean_commit(ROOT)
    found = _read_recording(options.source) if options.source else _recorded(options)
    entries = exact.read(GOLDEN)
    merged = exact.merge(found, entries, reason=options.reason, commit=commit)
    for line in exact.announce(found, entries):
        print(line)
    exact.write(GOLDEN, merged)
    print(f"{len(found.digests)} digests confirmed by {found.engine} in {GOLDEN.relative_to(ROOT)}")
    return 0


def prune(options: argparse.Namespace) -> int:
    """Removes the entries that no case has; the diff of golden/exact.json shows them to the reviewer."""
    provenance.refuse_in_ci()
    provenance.clean_commit(ROOT)
    entries = exact.read(GOLDEN)
    gone = {finding.key for finding in exact.stale(entries, _known_keys())}
    exact.write(GOLDEN, {key: entry for key, entry in entries.items() if key not in gone})
    print("\n".join(f"removed {key}" for key in sorted(gone)) or "nothing to remove")
    return 0


def diff(options: argparse.Namespace) -> int:
    """Compares the plans of today with the recorded ones; the lines say what a person would say of the difference."""
    today = plans.cells()
    lines = plans_diff.explained(plans_file.read(PLANS)[0], today)
    print("\n".join(lines) or f"{len(today)} plans as recorded")
    return 1 if lines else 0


def _record_plans(reason: str | None) -> int:
    """Writes golden/plans.json; a difference needs a reason, which is kept in the file with it."""
    commit, today = provenance.clean_commit(ROOT), plans.cells()
    recorded, changes = plans_file.read(PLANS) if PLANS.exists() else ([], [])
    changed = plans_diff.changes_of(recorded, today)
    if changed and reason is None:
        raise Refused("recorded plans change only with --reason TEXT:\n" + "\n".join(changed))
    if reason is not None and not (changed and reason.strip()):
        raise Refused(f"--reason is {reason!r}, but should be a text, and only where a recorded plan changes")
    if changed:
        changes = [*changes, {"commit": commit, "difference": changed, "reason": reason}]
    plans_file.write(PLANS, today, changes)
    print("\n".join([*changed, f"{len(today)} plans in {PLANS.relative_to(ROOT)}"]))
    return 0


def _recorded(options: argparse.Namespace) -> Recording:
    """What two fresh processes agree on; judged, see ci/recording.py."""
    sources, cases = provenance.sources_digest(ROOT), _cases(options.case)
    first, second = (recording.run_in_fresh_process(options.engine, cases) for _ in range(2))
    digests = exact.agreed(first.outcomes, second.outcomes)
    if provenance.sources_digest(ROOT) != sources:
        raise Refused("the sources were changed while they ran, but should stay as they are until the end")
    return Recording(first.engine, first.provenance, sources, digests)


def _write_recording(path: Path, found: Recording) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(dataclasses.asdict(found), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(path)
    print(f"{len(found.digests)} digests of {found.engine} in {path}; next: {exact.TOOL} record --from {path.name}")


def _read_recording(path: Path) -> Recording:
    """The recording in `path`. Raises Refused unless it is one and was made from this tree's sources."""
    try:
        found = Recording(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise Refused(f"{path} should be a file that record --out wrote: {error}") from error
    here = provenance.sources_digest(ROOT)
    if found.sources != here:
        raise Refused(f"{path.name} was made from the sources {found.sources}, but this tree's are {here}")
    return found


def _cases(ids: list[str] | None) -> tuple[Case, ...]:
    """The order-free cases with these ids, all of them without any."""
    from ..cases.layers import ORDERFREE

    missing = set(ids or ()) - {case.id for case in ORDERFREE}
    if missing:
        raise Refused(f"--case is {', '.join(sorted(missing))}, but should be the id of an order-free case")
    return tuple(case for case in ORDERFREE if not ids or case.id in ids)


def _known_keys() -> set[str]:
    return {exact.key(case, rounding) for case, rounding in recording.due("reference", _cases(None))}


def _print_findings(findings: list[exact.Finding], engine: str) -> None:
    """Each finding, and behind those of one status what to do about them."""
    look = "pytest --case ID" + (" --engine gpu" if engine == "gpu" else "")
    record = f"{exact.TOOL} record --engine {engine}"
    advice = {
        "FAILED": f"{look} shows more",
        "CHANGED": f"{look} shows which elements; where the change is meant: {record} --case ID --reason TEXT",
        "UNTESTED": f"not in golden/exact.json ({record}), or no longer run",
        "STALE": f"no case has this key: bring the case back, or {exact.TOOL} prune",
    }
    for status, text in advice.items():
        found = [finding for finding in findings if finding.status == status]
        for finding in found:
            print("\n          ".join([f"{status:9} {finding.key}", *finding.facts]))
        if found:
            print(f"  -> {text}")


def _print_totals(findings: list[exact.Finding], outcomes: dict[str, exact.Outcome], entries: exact.Entries) -> None:
    counts = Counter(finding.status for finding in findings)
    matching = len(outcomes.keys() - {finding.key for finding in findings})
    print(", ".join([f"{matching} as recorded", *(f"{number} {status}" for status, number in sorted(counts.items()))]))
    confirmed_by = [set(entries[name]["confirmed_by"]) for name in outcomes if name in entries]
    engines = Counter(engine for engines in confirmed_by for engine in engines)
    confirmed = ", ".join(f"{engine} {number}" for engine, number in sorted(engines.items())) or "nobody"
    unseen = sum(engines <= {"reference", "interpreter"} for engines in confirmed_by)
    print(f"confirmed by: {confirmed}; unseen on hardware: {unseen}")


if __name__ == "__main__":
    sys.exit(main())
