"""What a verification of golden/exact.json found, as JUnit: one test case a key."""

import xml.etree.ElementTree as xml
from pathlib import Path

from . import exact, files
from .exact import Finding
from .recording import Run


def write(path: Path, run: Run, findings: list[Finding], option: str) -> None:
    """Every key that `run` has an outcome for, and those of `findings`; `option` is the engine as --engine takes it."""
    found = {finding.key: finding for finding in findings}
    suite = xml.Element("testsuite", name="golden", failures=str(len(found)))
    properties = xml.SubElement(suite, "properties")
    for name, value in {"engine": run.engine, **run.provenance}.items():
        xml.SubElement(properties, "property", name=name, value=value)
    for key in sorted(run.outcomes.keys() | found):
        case = xml.SubElement(suite, "testcase", classname=f"golden.{run.engine}", name=key)
        if key in found:
            _add_failure(case, found[key], option)
    suite.set("tests", str(len(suite) - 1))
    root = xml.Element("testsuites")
    root.append(suite)
    files.write_text(path, xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n")


def _add_failure(case: xml.Element, finding: Finding, option: str) -> None:
    message = "\n".join([f"{finding.status}: {finding.key}", *finding.facts])
    failure = xml.SubElement(case, "failure", type=finding.status, message=message)
    failure.text = f"{exact.TOOL} verify --engine {option} --case {exact.case_id(finding.key)}"
