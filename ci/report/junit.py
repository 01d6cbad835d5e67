"""A JUnit file as data: pytest's, the compile gates', golden verify's. Pure."""

import xml.etree.ElementTree as xml
from dataclasses import dataclass
from pathlib import Path

EXPECTED = ("pytest.xfail", "expected")  # the types of a skip that stands for a failure which is known


@dataclass(frozen=True)
class Result:
    """One test case. `outcome`: "passed", "failed", "skipped" (so untested), or "known" (an expected failure).

    `message` is what is wrong, or why there is no result; `text` is all that was written of it.
    """

    group: str
    name: str
    outcome: str
    seconds: float
    message: str
    text: str
    properties: dict[str, str]


@dataclass(frozen=True)
class Suite:
    """One file. `name` is that of its first suite: "pytest", "compile-gates" or "golden"."""

    name: str
    properties: dict[str, str]
    results: tuple[Result, ...]

    @property
    def seconds(self) -> float:
        return sum(result.seconds for result in self.results)


def read(path: Path) -> Suite:
    """The file at `path`. Raises ValueError, with the reason, for what is no JUnit or is cut short."""
    try:
        root = xml.parse(path).getroot()
    except (xml.ParseError, UnicodeDecodeError, LookupError) as error:
        raise ValueError(f"no XML, or cut short: {error}") from error
    if root.tag not in ("testsuites", "testsuite"):
        raise ValueError(f"the root is <{root.tag}>, but should be <testsuites>")
    suites = [root] if root.tag == "testsuite" else root.findall("testsuite")
    if not suites:
        raise ValueError("there is no <testsuite> in it")
    results = tuple(_result(case) for suite in suites for case in suite.iter("testcase"))
    return Suite(suites[0].get("name", ""), _properties(suites[0]), results)


def _result(case: xml.Element) -> Result:
    wrong = [child for child in case if child.tag in ("failure", "error")]
    skipped = case.find("skipped")
    outcome, said = "passed", wrong
    if wrong:
        outcome = "failed"
    elif skipped is not None:
        outcome, said = "known" if skipped.get("type") in EXPECTED else "skipped", [skipped]
    return Result(
        case.get("classname", ""),
        case.get("name", ""),
        outcome,
        _seconds(case.get("time")),
        "\n".join(child.get("message", "") for child in said),
        "\n".join(child.text or "" for child in said),
        _properties(case),
    )


def _seconds(text: str | None) -> float:
    try:
        return max(0.0, float(text or 0))
    except ValueError:
        return 0.0


def _properties(parent: xml.Element) -> dict[str, str]:
    return {one.get("name", ""): one.get("value", "") for one in parent.findall("properties/property")}
