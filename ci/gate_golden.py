"""The gates against golden/codegen/: what changed of what was recorded, and recording it."""

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path

from . import codegen, gates, golden_file, provenance
from .codegen import Lines
from .gate_report import RED, Judged
from .golden_file import Refused

ROOT = Path(__file__).resolve().parent.parent
CODEGEN = ROOT / "golden" / "codegen"


def path_of(triton: str) -> Path:
    return CODEGEN / f"{triton}.json"


def against_record(triton: str, judged: list[Judged]) -> list[Judged]:
    """`judged`, where gates that hold, but whose facts are not those that are recorded, have the verdict "changed"."""
    differing = codegen.changed(codegen.read(path_of(triton))[0], _lines(judged))
    return [_changed(each, differing.get(_key(each))) for each in judged]


def _changed(judged: Judged, difference: str | None) -> Judged:
    if difference is None or judged.verdict != "passed":
        return judged
    name = "-".join((gates.arch_name(judged.outcome.capability), judged.id))
    return replace(judged, verdict="changed", error=f"{name}: {difference}")


def _key(judged: Judged) -> tuple[str, str] | None:
    outcome = judged.outcome
    return outcome.facts and (outcome.facts.assembler, gates.launch_id(outcome.capability, outcome.launch))


def _lines(judged: list[Judged]) -> Lines:
    return {_key(each): codegen.described(each.outcome.facts) for each in judged if each.outcome.facts}


def unrecorded(judged: list[Judged]) -> list[str]:
    """How many gates of each Triton golden/codegen/ does not know."""
    missing: Counter[str] = Counter()
    for triton in dict.fromkeys(each.triton for each in judged):
        recorded = codegen.read(path_of(triton))[0]
        here = [each for each in judged if each.triton == triton]
        missing[triton] = sum(key not in recorded for key in _lines(here))
    return [
        f"golden/codegen/ has nothing of {count} gates of Triton {triton}; `-- --record` records them"
        for triton, count in missing.items()
        if count
    ]


def record(judged: list[Judged], options: argparse.Namespace) -> list[str]:
    """Records the facts of gates that hold. Raises Refused in CI, in a dirty tree, and where a gate is red."""
    provenance.refuse_in_ci()
    commit = provenance.clean_commit(ROOT)
    if red := sum(each.verdict in RED and each.verdict != "changed" for each in judged):
        raise Refused(f"{red} gates are red, but all should hold before they are recorded")
    return [_record(triton, judged, commit, options.reason) for triton in {each.triton: 0 for each in judged}]


def _record(triton: str, judged: list[Judged], commit: str, reason: str | None) -> str:
    path, found = path_of(triton), _lines([each for each in judged if each.triton == triton])
    known = {gates.launch_id(*gate) for gate in gates.launches(triton)}
    with golden_file.locked(CODEGEN):
        recorded, changes = codegen.read(path)
        lines, changes = codegen.merged(recorded, found, changes, known=known, commit=commit, reason=reason)
        codegen.write(path, triton, lines, changes)
    return f"{len(found)} gates recorded in {path.relative_to(ROOT)}"
