"""All that is red, each once: what broke, in which runs, what was said of it, and how to repeat it. Pure."""

import re
import shlex
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from . import labels
from .junit import Result
from .picture import Cells
from .reading import Run
from .text import first_line, printable
from .verdicts import Verdict, unrecorded

Key = tuple[str, str]  # the same in every run: a test's group and name; of a gate and a digest its name alone

KINDS = ("session", "tests", "golden", "gates")  # in this order

_REPRO = re.compile(r"^repro +(\S.*)$", re.MULTILINE)
_FILE = re.compile(r"(tests(?:\.\w+)+)")


@dataclass(frozen=True)
class Occurrence:
    """One failure in one run: `explanation` is what the judge or the gate says, `text` all that was written of it."""

    run: str
    where: str
    explanation: str
    text: str
    repro: tuple[str, ...]
    cells: Cells | None = None

    @property
    def headline(self) -> str:
        return first_line(self.explanation) or "nothing was said of it"

    @property
    def essence(self) -> str:
        """The explanation without what it ran on: equal ones need be read once."""
        return re.sub(r"\n(environment|repro) .*", "", printable(self.explanation))


@dataclass(frozen=True)
class Failure:
    """What is red under one key. `kind` is one of KINDS, `anchor` its place in the page.

    `family` has what is likely to fail with it: all cases of a test by one kernel, all launches of a function. `new`:
    it was not red in the runs before; None where there are none to compare with.
    """

    anchor: str
    kind: str
    key: Key
    family: str
    occurrences: tuple[Occurrence, ...]
    new: bool | None = None

    @property
    def title(self) -> str:
        return self.key[1]

    @property
    def others(self) -> list[Occurrence]:
        """Those whose explanation is another one than the first's."""
        seen = {self.occurrences[0].essence}
        return [one for one in self.occurrences[1:] if one.essence not in seen and not seen.add(one.essence)]


def collect(verdicts: Iterable[Verdict], before: Iterable[Verdict] | None = None) -> list[Failure]:
    """The failures of all runs, in the order of KINDS, then new ones first, then in the order of the runs.

    `before` are runs of another day, None without any.
    """
    found = _gathered(verdicts)
    known = None if before is None else {where[:2] for where in _gathered(before)}
    new = {where: None if known is None else where[:2] not in known for where in found}
    ranked = sorted(found, key=lambda where: (KINDS.index(where[0]), new[where] is False))
    return [Failure(f"f{n}", *where, tuple(found[where]), new[where]) for n, where in enumerate(ranked, 1)]


def _gathered(verdicts: Iterable[Verdict]) -> dict[tuple[str, Key, str], list[Occurrence]]:
    """By (kind, key, family)."""
    found: dict[tuple[str, Key, str], list[Occurrence]] = {}
    for verdict in verdicts:
        for where, occurrence in _occurrences(verdict):
            found.setdefault(where, []).append(occurrence)
    return found


def _occurrences(verdict: Verdict) -> Iterator[tuple[tuple[str, Key, str], Occurrence]]:
    """((kind, key, family), occurrence) of all that is red in one run."""
    run = verdict.run
    if verdict.problems:
        where = " · ".join([verdict.on, *verdict.versions][: 2 if verdict.on else 1])
        yield ("session", ("", run.name), run.name), Occurrence(run.name, where, "\n".join(verdict.problems), "", ())
    for result in run.suite.results if run.suite else ():
        if result.outcome == "failed":
            yield (run.kind, key_of(run.kind, result), _family(result)), _of_result(run, result)
    for bundle in unrecorded(run):
        told = Occurrence(
            run.name, "", _judged(bundle.failure) or bundle.failure, bundle.failure, (bundle.replay,), bundle.cells
        )
        yield ("tests", (bundle.group, bundle.name), f"{bundle.name.partition('[')[0]} {bundle.kernel}"), told


def _family(result: Result) -> str:
    told = result.properties
    return told.get("function") or f"{result.name.partition('[')[0]} {told.get('kernel', '')}"


def key_of(kind: str, result: Result) -> Key:
    return (result.group, result.name) if kind == "tests" else ("", result.name)


def _of_result(run: Run, result: Result) -> Occurrence:
    if run.kind == "gates":
        arch, triton = labels.gate_of(result.group)
        return Occurrence(run.name, f"{arch}, Triton {triton}", result.message, "", (result.text.strip(),))
    if run.kind == "golden":
        return Occurrence(run.name, labels.on(run), result.message, "", (result.text.strip(),))
    bundle = next((one for one in run.bundles if (one.group, one.name) == (result.group, result.name)), None)
    explanation = _judged(result.text) or result.message.removeprefix("AssertionError: ")
    repro = [_command(run, result, explanation), *([bundle.replay] if bundle else [])]
    cells = bundle.cells if bundle else None
    return Occurrence(run.name, labels.on(run), explanation, result.text, tuple(repro), cells)


def _command(run: Run, result: Result, explanation: str) -> str:
    """What the judge says repeats it, or else the test's node id in a session of its engine."""
    if said := _REPRO.findall(explanation):
        return said[-1].strip()
    session = {"gpu": "gpu-tests", "compile": "gate-tests", "peers": "peers"}.get(labels.engine(run), "tests")
    file = _FILE.fullmatch(result.group)
    node = f"{result.group.replace('.', '/')}.py::{result.name}" if file else f"{result.group}.{result.name}"
    return f"nox -s {session} -- {shlex.quote(node)}"


def _judged(text: str) -> str:
    """What pytest marks with "E" in a traceback: of the last error, all of its message. Empty where there is none."""
    blocks: list[list[str]] = []
    lines = text.splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if re.match(r"E(   |$)", line):
            if not re.match(r"E(   |$)", before):
                blocks.append([])
            blocks[-1].append(line[1:])
    return textwrap.dedent("\n".join(blocks[-1])).removeprefix("AssertionError: ") if blocks else ""
