"""The gates against golden/codegen/: what changed of what was recorded, and recording it."""

import argparse
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

from . import codegen, gate_choice, gates, golden_file, provenance
from .codegen import Lines
from .gate_report import RED, Judged
from .golden_file import Refused

ROOT = Path(__file__).resolve().parent.parent
CODEGEN = ROOT / "golden" / "codegen"


def path_of(triton: str) -> Path:
    return CODEGEN / f"{triton}.json"


def check_files(tritons: list[str]) -> None:
    """Raises Refused for a file that is not as the tool wrote it."""
    for triton in tritons:
        codegen.read(path_of(triton))


def commit() -> str:
    """What the recorded facts are of. Raises Refused in CI and in a dirty tree."""
    provenance.refuse_in_ci()
    return provenance.clean_commit(ROOT)


def against_record(triton: str, judged: list[Judged]) -> list[Judged]:
    """`judged`, where gates that hold, but whose facts are not those that are recorded, have the verdict "changed".

    Also known failures that do compile.
    """
    differing = codegen.changed(codegen.read(path_of(triton))[0], _lines(judged))
    return [_changed(each, differing.get(_key(each))) for each in judged]


def _changed(judged: Judged, difference: str | None) -> Judged:
    if difference is None or judged.verdict not in ("passed", "known"):
        return judged
    name = "-".join((gates.arch_name(judged.outcome.capability), judged.id))
    return replace(judged, verdict="changed", error=f"{name}: {difference}")


def _key(judged: Judged) -> tuple[str, str] | None:
    outcome = judged.outcome
    return outcome.facts and (outcome.facts.assembler, gates.launch_id(outcome.capability, outcome.launch))


def _lines(judged: list[Judged]) -> Lines:
    return {_key(each): codegen.described(each.outcome.facts) for each in judged if each.outcome.facts}


def unrecorded(judged: list[Judged]) -> list[str]:
    """How many gates of each Triton golden/codegen/ does not know, of those that it should."""
    missing: Counter[str] = Counter()
    for triton, lines in _by_triton(judged).items():
        missing[triton] = len(lines.keys() - codegen.read(path_of(triton))[0].keys())
    return [
        f"golden/codegen/ has nothing of {count} gates of Triton {triton}; `-- --record` records them"
        for triton, count in missing.items()
        if count
    ]


def record(judged: list[Judged], options: argparse.Namespace) -> list[str]:
    """Records the facts of gates that hold, of those that a run takes by default: the files list them and no others.

    Raises Refused in CI, in a dirty tree, where a gate is red, where recorded facts change without a reason, and for a
    reason where nothing changes. Then no file is written.
    """
    at = commit()
    if red := sum(each.verdict in RED and each.verdict != "changed" for each in judged):
        raise Refused(f"{red} gates are red, but all should hold before they are recorded")
    by_triton = _by_triton(judged)
    with golden_file.locked(CODEGEN):
        merged = {triton: _merged(triton, found, at, options.reason) for triton, found in by_triton.items()}
        if options.reason and all(changes == codegen.read(path_of(one))[1] for one, (_, changes) in merged.items()):
            raise Refused(f"--reason is {options.reason!r}, but should be given only where something changes")
        for triton, (lines, changes) in merged.items():
            codegen.write(path_of(triton), triton, lines, changes)
    return [
        f"{len(found)} gates recorded in golden/codegen/{path_of(triton).name}" for triton, found in by_triton.items()
    ]


def _merged(triton: str, found: Lines, commit: str, reason: str | None) -> tuple[Lines, list[dict]]:
    recorded, changes = codegen.read(path_of(triton))
    return codegen.merged(recorded, found, changes, known=_owed(triton), commit=commit, reason=reason)


def _by_triton(judged: list[Judged]) -> dict[str, Lines]:
    """The facts that are to be recorded, or are."""
    tritons = dict.fromkeys(each.triton for each in judged)
    lines = {triton: _lines([each for each in judged if each.triton == triton]) for triton in tritons}
    return {triton: {key: lines[triton][key] for key in lines[triton] if key[1] in _owed(triton)} for triton in tritons}


@cache
def _owed(triton: str) -> frozenset[str]:
    """The ids of the gates that golden/codegen/ has: what a run takes by default."""
    return frozenset(gates.launch_id(*gate) for gate in gate_choice.chosen(triton))
