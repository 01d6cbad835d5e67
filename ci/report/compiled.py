"""What the compiler made, in numbers: for each architecture and Triton, read off the gates' facts. Pure."""

import re
from collections import defaultdict
from dataclasses import dataclass

from ...contract.gpus import ARCHITECTURES
from . import labels
from .junit import Result
from .subjects import CAPABILITIES
from .verdicts import Verdict


@dataclass(frozen=True)
class Line:
    """One architecture under one Triton. `shared_bytes` is the most that a launch takes, of `limit` (None: unknown)."""

    arch: str
    triton: str
    assembler: str
    passed: int
    failed: int
    known: int
    instructions: tuple[str, ...]
    registers: int
    shared_bytes: int
    limit: int | None


def lines(verdicts: list[Verdict]) -> list[Line]:
    """By architecture, then by Triton."""
    found: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.run.kind == "gates":
            for result in verdict.run.suite.results:
                found[labels.gate_of(result.group)].append(result)
    ordered = sorted(found, key=lambda place: tuple(map(labels.by_numbers, place)))
    return [_line(*place, found[place]) for place in ordered]


def _line(arch: str, triton: str, results: list[Result]) -> Line:
    facts = [facts_of(result.properties.get("facts", "")) for result in results]
    kinds = {name.split(".")[0] for each in facts for name in each.get("instructions", "").split(",") if name}
    assemblers = dict.fromkeys(result.properties.get("assembler", "") for result in results)
    outcomes = [sum(result.outcome == outcome for result in results) for outcome in ("passed", "failed", "known")]
    most = [max((_whole(each.get(name, "")) for each in facts), default=0) for name in ("registers", "shared")]
    limit = ARCHITECTURES[CAPABILITIES[arch]].shared_memory if arch in CAPABILITIES else None
    return Line(arch, triton, ", ".join(filter(None, assemblers)), *outcomes, tuple(sorted(kinds)), *most, limit)


def facts_of(line: str) -> dict[str, str]:
    """The words "name=value" of a line of facts, as ci/codegen.py writes it."""
    return dict(word.split("=", 1) for word in line.split(" ") if "=" in word)


def _whole(text: str) -> int:
    return int(text) if re.fullmatch(r"\d{1,9}", text) else 0
