"""What a verification of golden/ found, as JUnit: one test case a key."""

import xml.etree.ElementTree as xml
from collections.abc import Iterable
from pathlib import Path

from . import files
from .outcomes import TOOL, Finding
from .recording import Engine


def write(path: Path, engine: Engine, keys: Iterable[str], findings: list[Finding], option: str) -> None:
    """All `keys` that were verified, and those of `findings`; `option` is the engine as --engine takes it."""
    found = {finding.key: finding for finding in findings}
    suite = xml.Element("testsuite", name="golden", failures=str(len(found)))
    properties = xml.SubElement(suite, "properties")
    for name, value in {"engine": engine.name, **engine.facts}.items():
        xml.SubElement(properties, "property", name=name, value=value)
    for key in sorted({*keys, *found}):
        case = xml.SubElement(suite, "testcase", classname=f"golden.{engine.name}", name=key)
        if key in found:
            _add_failure(case, found[key], option)
    suite.set("tests", str(len(suite) - 1))
    root = xml.Element("testsuites")
    root.append(suite)
    files.write_text(path, xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n")


def _add_failure(case: xml.Element, finding: Finding, option: str) -> None:
    message = "\n".join([f"{finding.status}: {finding.key}", *finding.facts])
    failure = xml.SubElement(case, "failure", type=finding.status, message=message)
    failure.text = f"{TOOL} verify --engine {option} --case {finding.key.partition('/')[0]}"
