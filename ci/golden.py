"""Verifies, records and explains golden/: exact.json, one digest per order-free case for all engines; recorded/, those
of real-valued cases on GPUs; and plans.json, what dispatch chooses on many cards.

    python -m nvfp4_suite.ci.golden verify [--engine reference|interpreter|gpu] [--case ID ...]
    python -m nvfp4_suite.ci.golden record --engine E [--case ID ...] [--reason TEXT]
    python -m nvfp4_suite.ci.golden record --engine E --out FILE      on a host without git
    python -m nvfp4_suite.ci.golden record --from FILE [--reason TEXT]
    python -m nvfp4_suite.ci.golden prune                             removes what no case has, sorts the rest
    python -m nvfp4_suite.ci.golden explain KEY                       what a key is, and what became of it
    python -m nvfp4_suite.ci.golden diff                              how plans differ from the recorded ones
    python -m nvfp4_suite.ci.golden record --plans [--reason TEXT]

Exit code 0: all is as recorded, or recorded. 1: it is not, or the rules refuse. 2: wrong arguments.
"""

import argparse
import sys
from pathlib import Path

from ..contract.case import Case
from . import (
    exact,
    golden_explain,
    golden_file,
    golden_record,
    golden_verify,
    gpus,
    plans,
    plans_diff,
    plans_file,
    provenance,
    recorded,
    recording,
)
from .gpus import NoGpu
from .outcomes import TOOL, Refused

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
    parser = argparse.ArgumentParser(prog=TOOL, description="verify, record and explain golden/")
    commands = parser.add_subparsers(required=True, metavar="verify | record | prune | explain | diff")
    verify_parser = commands.add_parser("verify", help="recompute the digests and compare")
    verify_parser.set_defaults(command=verify)
    engine_help = "default: gpu where there is one, else reference"
    verify_parser.add_argument("--engine", choices=recording.ENGINES, help=engine_help)
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
    commands.add_parser("prune", help="remove what no case has, and sort").set_defaults(command=prune)
    explain_parser = commands.add_parser("explain", help="what a key is, and what became of it")
    explain_parser.add_argument("key", metavar="KEY", help="as the tool prints it, or the beginning of several")
    explain_parser.set_defaults(command=explain)
    commands.add_parser("diff", help="how plans differ from the recorded ones").set_defaults(command=diff)
    return parser


def verify(options: argparse.Namespace) -> int:
    """Recomputes digests on one engine and compares."""
    if options.junit:
        options.junit.unlink(missing_ok=True)  # or an earlier one would pass for this one's, should it be refused
    options.engine = options.engine or _engine_here()
    return golden_verify.verify(options, GOLDEN.parent, _cases(options.case))


def _engine_here() -> str:
    try:
        gpus.mine()
    except NoGpu:
        return "reference"
    return "gpu"


def record(options: argparse.Namespace) -> int:
    """Records an engine's digests, computed here or read from a recording, or the plans."""
    if options.plans:
        return _record_plans(options.reason)
    return golden_record.record(options, ROOT, _cases(options.case))


def prune(options: argparse.Namespace) -> int:
    """Removes the entries that no case has, and sorts the rest; the diff of golden/ shows them to the reviewer."""
    provenance.refuse_in_ci()
    provenance.clean_commit(ROOT)
    with golden_file.locked(GOLDEN.parent):
        entries, tables = exact.read(GOLDEN), recorded.tables(GOLDEN.parent)
        gone = {finding.key for finding in golden_verify.stale(entries, tables)}
        exact.write(GOLDEN, {key: entry for key, entry in entries.items() if key not in gone})
        for path in recorded.paths(GOLDEN.parent):
            held, changes = recorded.read(path)
            kept = {name: entry for name, entry in held.items() if str(recorded.key_in(path, name)) not in gone}
            recorded.write(path, kept, changes)
    print("\n".join(f"removed {key}" for key in sorted(gone)) or "nothing to remove")
    return 0


def explain(options: argparse.Namespace) -> int:
    """Says what a key is, who confirmed it, how it changed and how it stands against the nearest other."""
    print("\n".join(golden_explain.explained(options.key, GOLDEN.parent)))
    return 0


def diff(options: argparse.Namespace) -> int:
    """Compares the plans of today with the recorded ones; the lines say what a person would say of the difference."""
    today = plans.cells()
    lines = plans_diff.explained(plans_file.read(PLANS)[0], today)
    print("\n".join(lines) or f"{len(today)} plans as recorded")
    return 1 if lines else 0


def _record_plans(reason: str | None) -> int:
    """Writes golden/plans.json; a difference needs a reason, which is kept in the file with it."""
    provenance.refuse_in_ci()
    commit, today = provenance.clean_commit(ROOT), plans.cells()
    with golden_file.locked(PLANS.parent):
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


def _cases(ids: list[str] | None) -> tuple[Case, ...]:
    """The cases with these ids, all of them without any."""
    from ..cases import layers

    missing = set(ids or ()) - {case.id for case in layers.ALL}
    if missing:
        raise Refused(f"--case is {', '.join(sorted(missing))}, but should be the id of a case of cases/layers.py")
    return tuple(case for case in layers.ALL if not ids or case.id in ids)


if __name__ == "__main__":
    sys.exit(main())
