"""Verifies golden/: recomputes digests on one engine, and says which are not, or not any more, what is recorded."""

import argparse
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..contract.case import Case
from . import exact, golden_due, golden_junit, golden_work, outcomes, recorded
from .golden_record import EXACT, exact_of, recorded_of
from .golden_work import Run
from .outcomes import ON_CPU, TOOL, Finding, Outcome, Refused
from .recorded import Key


def verify(options: argparse.Namespace, folder: Path, cases: tuple[Case, ...]) -> int:
    """Recomputes digests on one engine and compares; without --case, also looks for keys that no case has.

    Kernels are compiled anew, but for those in the folder that TRITON_CACHE_DIR names.
    """
    entries, tables = exact.read(folder / EXACT), recorded.tables(folder)
    (run,) = golden_work.runs(options.engine, cases, 1, cache=os.environ.get("TRITON_CACHE_DIR"))
    if not run.outcomes:
        raise Refused(f"{options.engine} owes no digest of these cases, so there is nothing to verify")
    found, name = exact_of(run), outcomes.confirmation(run.engine.name, run.engine.facts)
    findings = outcomes.compare(found, entries) + exact.not_run(name, found, entries, {case.id for case in cases})
    if not options.case:
        findings += stale(entries, tables)
    real = [] if run.engine.name in ON_CPU else _real(run, folder, cases)
    if options.junit:
        keys = {*found, *(str(recorded.key_in(_path(run, folder), name)) for name in _compared(run, folder))}
        golden_junit.write(options.junit, run.engine, keys, findings + real, options.engine)
    _print_findings(findings + real, options.engine)
    _print_totals(findings, found)
    _print_confirmed(found, entries)
    if run.engine.name not in ON_CPU:
        _print_real(run, folder, real)
    return 1 if findings or real else 0


def stale(entries: exact.Entries, tables: Mapping[Key, dict]) -> list[Finding]:
    """What no case has any more, of both kinds."""
    known = {arch: golden_due.known_recorded(arch) for arch in {key.arch for key in tables}}
    gone = [Finding("STALE", str(key)) for key in sorted(tables) if key.name not in known[key.arch]]
    return outcomes.stale(entries, golden_due.known_exact()) + gone


def _real(run: Run, folder: Path, cases: tuple[Case, ...]) -> list[Finding]:
    """What is wrong with real-valued cases. Where nothing is recorded for the architecture, nothing is missing."""
    found, entries = recorded_of(run), _recorded(run, folder)
    findings = outcomes.compare(found, entries)
    findings += recorded.not_run(found, entries, run.engine.speed, {case.id for case in cases})
    if not _path(run, folder).parent.exists():
        findings = [finding for finding in findings if finding.status == "FAILED"]
    return [Finding(one.status, str(recorded.key_in(_path(run, folder), one.key)), one.facts) for one in findings]


def _compared(run: Run, folder: Path) -> Iterable[str]:
    """The names of real-valued outputs that there is something to compare with."""
    on_cpu = run.engine.name in ON_CPU
    return () if on_cpu or not _path(run, folder).parent.exists() else recorded_of(run)


def _path(run: Run, folder: Path) -> Path:
    return recorded.path_of(folder, run.engine.name, run.engine.facts["triton"].partition("+")[0])


def _recorded(run: Run, folder: Path) -> recorded.Entries:
    return recorded.read(_path(run, folder))[0]


def _print_findings(findings: list[Finding], engine: str) -> None:
    """Each finding, and behind those of one status what to do about them."""
    look = "pytest --case ID" + (" --engine gpu" if engine == "gpu" else "")
    record = f"{TOOL} record --engine {engine}"
    advice = {
        "FAILED": f"{look} shows more",
        "CHANGED": f"{TOOL} explain KEY; where the change is meant: {record} --case ID --reason TEXT",
        "UNTESTED": f"not in golden/ ({record}), or no longer run",
        "STALE": f"no case has this key: bring the case back, or {TOOL} prune",
    }
    for status, text in advice.items():
        found = [finding for finding in findings if finding.status == status]
        for finding in found:
            print("\n          ".join([f"{status:9} {finding.key}", *finding.facts]))
        if found:
            print(f"  -> {text}")


def _print_totals(findings: list[Finding], outcomes: Mapping[str, Outcome], where: str = "") -> None:
    counts = Counter(finding.status for finding in findings)
    matching = len(outcomes.keys() - {finding.key for finding in findings})
    numbers = [f"{matching} as recorded", *(f"{number} {status}" for status, number in sorted(counts.items()))]
    print(where + ", ".join(numbers))


def _print_confirmed(outcomes: Mapping[str, Outcome], entries: exact.Entries) -> None:
    confirmed_by = [set(entries[name]["confirmed_by"]) for name in outcomes if name in entries]
    engines = Counter(engine for engines in confirmed_by for engine in engines)
    confirmed = ", ".join(f"{engine} {number}" for engine, number in sorted(engines.items())) or "nobody"
    unseen = sum(engines <= set(ON_CPU) for engines in confirmed_by)
    print(f"confirmed by: {confirmed}; unseen on hardware: {unseen}")


def _print_real(run: Run, folder: Path, findings: list[Finding]) -> None:
    """How real-valued cases stand, and which of their digests came from another plan than the recorded one did."""
    found, path = recorded_of(run), _path(run, folder)
    where = f"{run.engine.name}, {run.engine.speed}, Triton {path.stem}"
    if not path.parent.exists():
        print(f"of {len(found)} real-valued outputs none is compared: nothing is recorded for {run.engine.name}")
        return
    _print_totals(findings, {str(recorded.key_in(path, name)): each for name, each in found.items()}, f"{where}: ")
    for line in recorded.replanned(found, _recorded(run, folder)):
        print(line)
