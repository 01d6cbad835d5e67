"""What the jobs of a nightly run left: which tests ran in each, and what failed. Needs neither torch nor triton.

A job's results are a folder, `artifacts/<job>/`, with whatever of this the job has made, at any depth:

    <GPU>/junit.xml, manifest.json, session.json, environment.json, failures/     of gpu-tests, for its kind of GPU
    golden.xml                                                                    of golden -- verify --junit
    tests.xml, session.json, environment.json, failures/                          of tests, in the job "interpreter"
    gates.xml                                                                     of compile-gates, in the job "compile"
    gate-tests.xml, session.json, environment.json                                of gate-tests, there too
    status.txt                                                                    one word: how the job's steps went
"""

import ast
import json
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SESSIONS = {"junit": "gpu-tests", "tests": "tests", "gate-tests": "gate-tests"}  # by what their records are called
GATES, GOLDEN = OTHERS = ("compile-gates", "golden")  # as groups of test cases begin that are none of pytest's
TEXT = 3000  # characters of an explanation that are kept


@dataclass(frozen=True)
class Test:
    """One test case of a record. `node` is its id, as pytest takes it; a gate's and a digest's begin with a group."""

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
    if group.startswith(OTHERS):
        return f"{group}::{name}"
    return f"{group.replace('.', '/')}.py::{name}"


def failures(folder: Path) -> Iterator[Failure]:
    """All that went wrong in the job that left `folder`; a job that left no status is ci/night.py's matter."""
    found = [*_of_records(folder), *_of_sessions(folder)]
    yield from found
    status = folder / "status.txt"
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
        for test in found:
            what, repro = _of_record(test, SESSIONS.get(record.stem, "tests"))
            yield Failure(what, folder.name, printable(test.node), printable(test.text), printable(repro))


def _of_record(test: Test, session: str) -> tuple[str, str]:
    """What failed, the same for what fails alike, and the command that repeats it.

    Alike are tests of one function by one kernel, gates of one kernel, and digests of one rounding form.
    """
    if test.node.startswith(OTHERS):
        group, _, name = test.node.partition("::")
        kind = name.rpartition("/")[2] if group.startswith(GOLDEN) else " ".join(name.split("-")[:2])
        return printable(f"{group.partition('.')[0]}: {kind}"), printable(test.text.splitlines()[-1])
    by = f" by {test.kernel}" if test.kernel else ""
    return printable(test.node.partition("[")[0] + by), printable(f"nox -s {session} -- '{test.node}'")


def _of_sessions(folder: Path) -> Iterator[Failure]:
    """What failed a session although none of its tests failed: UNTESTED, LOST GPU and the like."""
    for file in sorted(folder.rglob("session.json")):
        for line in json.loads(file.read_text(encoding="utf-8"))["problems"]:
            what, _, which = line.partition(": ")
            yield Failure(printable(what), folder.name, printable(which), "", "")


def printable(text: str) -> str:
    """`text` without what steers a terminal or turns a line around, and not longer than TEXT."""
    clean = "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)
    return clean if len(clean) <= TEXT else clean[:TEXT] + f"\n... and {len(clean) - TEXT} characters more"
