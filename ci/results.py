"""What the jobs of a nightly run left: which tests ran in each, and what failed. Needs neither torch nor triton.

A job's results are a folder, `artifacts/<job>/`, with whatever of this the job has made, at any depth:

    <GPU>/junit.xml, manifest.json, problems.txt, environment.json, failures/     of gpu-tests, for its kind of GPU
    golden.json                                                                   of golden -- verify --json
    tests.xml, problems.txt, environment.json, failures/                          of tests, in the job "interpreter"
    gates.xml                                                                     of compile-gates, in the job "compile"
    gate-tests.xml, problems.txt, environment.json                                of gate-tests, there too
    status                                                                        one word: how the job's steps went
"""

import ast
import json
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SESSIONS = {"junit": "gpu-tests", "tests": "tests", "gate-tests": "gate-tests"}  # by what their records are called
GATES = "compile-gates"
TEXT = 3000  # characters of an explanation that are kept


@dataclass(frozen=True)
class Test:
    """One test case of a record. `node` is its id, as pytest takes it; a gate's begins with GATES."""

    node: str
    verdict: str  # passed, failed or skipped
    text: str = ""
    kernel: str | None = None  # where the test is one that a session owes


@dataclass(frozen=True)
class Failure:
    """One thing that went wrong in one job. `what` is the same for what is likely to have one cause."""

    what: str
    job: str
    which: str
    text: str
    repro: str


def tests(record: Path) -> Iterator[Test]:
    """The test cases of a JUnit record. Raises xml.ParseError for one that was cut short."""
    for case in xml.parse(record).iter("testcase"):
        names = {child.get("name"): child.get("value") for child in case.iter("property")}
        kernel = ast.literal_eval(names["due"])[1] if "due" in names else None
        wrong = next((child for kind in ("failure", "error") for child in case.iter(kind)), None)
        if wrong is not None:
            yield Test(_node(case), "failed", f"{wrong.get('message', '')}\n{wrong.text or ''}", kernel)
        else:
            yield Test(_node(case), "skipped" if case.find("skipped") is not None else "passed", kernel=kernel)


def readable(record: Path) -> list[Test]:
    """The same; nothing of a record that was cut short."""
    try:
        return list(tests(record))
    except xml.ParseError:
        return []


def _node(case: xml.Element) -> str:
    group, name = case.get("classname", ""), case.get("name", "")
    if group.startswith(GATES):
        return f"{group}::{name}"
    return f"{group.replace('.', '/')}.py::{name}"


def failures(folder: Path) -> Iterator[Failure]:
    """All that went wrong in the job that left `folder`; a job that left no status is ci/night.py's matter."""
    found = [*_of_records(folder), *_of_golden(folder), *_of_sessions(folder)]
    yield from found
    status = folder / "status"
    said = status.read_text(encoding="utf-8").strip() if status.exists() else None
    if said not in (None, "success") and not found:
        yield Failure("a job fails without a failed test", folder.name, printable(said), "Its log says more.", "")


def _of_records(folder: Path) -> Iterator[Failure]:
    for record in sorted(folder.rglob("*.xml")):
        try:
            found = [test for test in tests(record) if test.verdict == "failed"]
        except xml.ParseError as error:
            yield Failure("results that cannot be read", folder.name, record.name, printable(str(error)), "")
            continue
        session = SESSIONS.get(record.stem, "tests")
        for test in found:
            what, repro = _gate(test) if test.node.startswith(GATES) else _test(test, session)
            yield Failure(what, folder.name, printable(test.node), printable(test.text), printable(repro))


def _test(test: Test, session: str) -> tuple[str, str]:
    """What failed, and the command that repeats it: tests of one function fail alike, of one kernel."""
    function = test.node.partition("[")[0]
    by = f" by {test.kernel}" if test.kernel else ""
    return printable(function + by), f"nox -s {session} -- '{test.node}'"


def _gate(test: Test) -> tuple[str, str]:
    """The same of a gate: those of one kernel fail alike. Its text ends with the command."""
    stage, kernel, *_ = [*test.node.partition("::")[2].split("-"), ""]
    return printable(f"compile gates of {stage} by {kernel}"), test.text.splitlines()[-1]


def _of_golden(folder: Path) -> Iterator[Failure]:
    for file in sorted(folder.rglob("golden.json")):
        for finding in json.loads(file.read_text(encoding="utf-8"))["findings"]:
            case, _, form = finding["key"].rpartition("/")
            what, repro = f"golden {finding['status']}, {form}", f"nox -s golden -- verify --engine gpu --case {case}"
            text = "\n".join(finding["facts"])
            yield Failure(printable(what), folder.name, printable(finding["key"]), printable(text), printable(repro))


def _of_sessions(folder: Path) -> Iterator[Failure]:
    """What failed a session although none of its tests failed: UNTESTED, LOST GPU and the like."""
    for file in sorted(folder.rglob("problems.txt")):
        for line in file.read_text(encoding="utf-8").splitlines():
            what, _, which = line.partition(": ")
            yield Failure(printable(what), folder.name, printable(which), "", "")


def printable(text: str) -> str:
    """`text` without what steers a terminal or turns a line around, and not longer than TEXT."""
    clean = "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)
    return clean if len(clean) <= TEXT else clean[:TEXT] + f"\n... and {len(clean) - TEXT} characters more"
