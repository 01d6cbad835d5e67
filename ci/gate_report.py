"""What a run of the compile gates says: failures first, then a matrix, as text, Markdown and JUnit."""

import xml.etree.ElementTree as xml
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from . import codegen
from .gate_compile import arch_name
from .gate_facts import Capability
from .gate_known import Known, known_failure
from .gate_outcome import Outcome
from .gate_said import excerpt
from .gates import launch_id, launches

RED = ("failed", "unexpected pass", "changed")
LOGS = Path("build/compile-gates")  # in the folder where the gates run: what compilers said of red gates
MARKDOWN_FAILURES = 50  # GitHub cuts a summary off that is over 1 MiB


@dataclass(frozen=True)
class Judged:
    """One gate under one Triton: its outcome, the verdict ("passed", "failed", "known", ...) and what is wrong."""

    triton: str
    outcome: Outcome
    verdict: str
    error: str = ""

    @property
    def id(self) -> str:
        """Without the architecture: "gate_up-w4a16_gemm-bf16-fp8e4nv-m128-n64-kb32-unit32-4w-3s"."""
        return launch_id(self.outcome.capability, self.outcome.launch).split("-", 1)[1]

    @property
    def known(self) -> Known | None:
        """The line of the known failures that it is in."""
        return known_failure(self.outcome.capability, self.outcome.launch, self.triton)

    @property
    def repro(self) -> str:
        arch = arch_name(self.outcome.capability).removeprefix("sm_")
        return f"nox -s compile-gates -- --launch {self.id} --arch {arch} --triton {self.triton}"

    @property
    def log(self) -> Path | None:
        """The file for what the compiler said, if it said anything and the gate is red."""
        arch = arch_name(self.outcome.capability)
        return LOGS / f"{self.triton}-{arch}-{self.id}.log" if self.verdict in RED and self.outcome.said else None


def text(judged: list[Judged], seconds: dict[str, float]) -> str:
    """The report for a terminal."""
    return "\n".join(
        [*_failures(judged), *_known(judged), *_tools(judged), "", *_matrix(judged), *_totals(judged, seconds)]
    )


def _failures(judged: list[Judged]) -> list[str]:
    lines = []
    for each in judged:
        if each.verdict in RED:
            lines += [*_failure(each), *_said(each)]
    return lines


def _failure(each: Judged) -> tuple[str, str]:
    """What is wrong, and the command that repeats it."""
    error = each.error or f"passes, but is known to fail: {each.known.reason}"
    return f"{each.verdict.upper()}: {error}", f"    {each.repro}"


def _said(each: Judged) -> list[str]:
    """What the compiler said, in short, and where the whole of it is."""
    lines = [f"    | {line}" for line in excerpt(each.outcome.said)]
    return [*lines, f"    | all of it: {each.log}"] if each.log else []


def write_logs(judged: list[Judged]) -> None:
    """What compilers said of red gates, a file each."""
    for each in judged:
        if each.log:
            LOGS.mkdir(parents=True, exist_ok=True)
            each.log.write_text(each.outcome.said, encoding="utf-8")


def _known(judged: list[Judged]) -> list[str]:
    lines = Counter(each.known for each in judged if each.verdict == "known")
    return [f"known: {count} gates: Triton {', '.join(known.tritons)}: {known.why}" for known, count in lines.items()]


def _tools(judged: list[Judged]) -> list[str]:
    """Which assembler compiled for which architectures."""
    used: dict[tuple[str, str], set[Capability]] = {}
    for each in judged:
        if each.outcome.facts:
            used.setdefault((each.triton, each.outcome.facts.assembler), set()).add(each.outcome.capability)
    names = {tools: ", ".join(arch_name(capability) for capability in sorted(found)) for tools, found in used.items()}
    return [f"Triton {triton}, {assembler}: {archs}" for (triton, assembler), archs in sorted(names.items())]


def _matrix(judged: list[Judged]) -> list[str]:
    """Architectures by Triton."""
    rows = [" | ".join(cells) for cells in table(judged)]
    return [rows[0], "-" * len(rows[0]), *rows[1:]] if rows else []


def table(judged: list[Judged]) -> list[list[str]]:
    """The matrix as cells, all of a column equally wide: "90 passed", "3 FAILED of 90", "90 known"."""
    tritons = list(dict.fromkeys(each.triton for each in judged))
    capabilities = sorted({each.outcome.capability for each in judged})
    counts = Counter((each.outcome.capability, each.triton, each.verdict) for each in judged)
    rows = [["arch", *tritons]]
    for capability in capabilities:
        rows.append([arch_name(capability), *(_cell(counts, capability, triton) for triton in tritons)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]


def _cell(counts: Counter, capability: Capability, triton: str) -> str:
    found = {verdict: count for (c, t, verdict), count in counts.items() if (c, t) == (capability, triton)}
    red = [f"{count} {verdict.upper()}" for verdict, count in found.items() if verdict in RED]
    return ", ".join([*red, *(f"{count} {verdict}" for verdict, count in found.items() if verdict not in RED)])


def _totals(judged: list[Judged], seconds: dict[str, float]) -> list[str]:
    lines = []
    for triton, elapsed in seconds.items():
        here = [each for each in judged if each.triton == triton]
        reused = sum(each.outcome.reused for each in here)
        shared = sum(bool(each.outcome.facts and each.outcome.facts.head) for each in here)
        how = f"{reused} known from before, {shared} with the PTX of another architecture of their family"
        lines.append(f"Triton {triton}: {len(here)} of {len(launches(triton)):,} launches in {elapsed:.0f} s ({how})")
    red = sum(each.verdict in RED for each in judged)
    return [*lines, f"{red} of {len(judged)} gates are red" if red else f"all {len(judged)} gates hold"]


def markdown(judged: list[Judged], seconds: dict[str, float]) -> str:
    """The report for a summary page: failures first, the first MARKDOWN_FAILURES of them."""
    failures = [_failure(each) for each in judged if each.verdict in RED]
    shown = [line for error, repro in failures for line in (f"- {error}", f"  `{repro.strip()}`")]
    more = len(failures) - MARKDOWN_FAILURES
    head, *rows = [f"| {' | '.join(cells)} |" for cells in table(judged)]
    return "\n".join(
        [
            "## Compile gates",
            *shown[: 2 * MARKDOWN_FAILURES],
            *([f"- and {more} more"] if more > 0 else []),
            "",
            head,
            "|" + "---|" * (head.count("|") - 1),
            *rows,
            "",
            *(f"- {line}" for line in [*_known(judged), *_tools(judged), *_totals(judged, seconds)]),
            "",
        ]
    )


def write_junit(path: Path, judged: list[Judged]) -> None:
    """One test case a gate; a known failure is one that was skipped, as pytest writes an expected failure.

    Properties of a test case: its `function` in kernels/device, and, if it compiled, `assembler` and `facts`.
    """
    suite = xml.Element("testsuite", name="compile-gates", tests=str(len(judged)))
    suite.set("failures", str(sum(each.verdict in RED for each in judged)))
    suite.set("skipped", str(sum(each.verdict == "known" for each in judged)))
    for each in judged:
        group = f"compile-gates.triton-{each.triton}.{arch_name(each.outcome.capability)}"
        case = xml.SubElement(suite, "testcase", classname=group, name=each.id, time=f"{each.outcome.seconds:.3f}")
        _add_properties(case, each.outcome)
        if each.verdict in RED:
            failure = xml.SubElement(case, "failure", message=each.error or each.verdict)
            failure.text = each.repro
        elif each.verdict == "known":
            xml.SubElement(case, "skipped", type="expected", message=each.known.reason)
    root = xml.Element("testsuites")
    root.append(suite)
    xml.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _add_properties(case: xml.Element, outcome: Outcome) -> None:
    found = {"function": outcome.launch.kernel}
    if outcome.facts:
        found |= {"assembler": outcome.facts.assembler, "facts": codegen.described(outcome.facts)}
    properties = xml.SubElement(case, "properties")
    for name, value in found.items():
        xml.SubElement(properties, "property", name=name, value=value)
