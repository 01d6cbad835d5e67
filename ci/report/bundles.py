"""Failure bundles as a report reads them: what ci/bundle.py writes, without its tensors. Pure."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from .picture import Cells


@dataclass(frozen=True)
class Bundle:
    """One bundle. `group` and `name` are those of its test in JUnit; `cells`: where the output is wrong, if known."""

    group: str
    name: str
    kernel: str
    failure: str
    replay: str
    cells: Cells | None


def read_bundle(folder: Path) -> Bundle:
    """The bundle in `folder`. Raises ValueError for what is none, or holds other values than ci/bundle.py writes."""
    file = folder / "bundle.json"
    if not file.is_file():
        raise ValueError("a bundle should have a bundle.json")
    plain = json.loads(file.read_text(encoding="utf-8"))
    test, failure, kernel = (_text(plain, name) for name in ("test", "failure", "kernel"))
    cells = Cells.of(plain["wrong"]) if plain.get("wrong") is not None else None
    return Bundle(*junit_name(test), kernel, failure, f"python -m nvfp4_suite replay {folder}", cells)


def _text(plain: object, name: str) -> str:
    value = plain.get(name, "") if isinstance(plain, dict) else None
    if not isinstance(value or "", str):
        raise ValueError(f"{name} is {value!r:.80}, but should be a text")
    return value or ""


def junit_name(node: str) -> tuple[str, str]:
    """How pytest names the test of a node id in JUnit: "tests/a/test_b.py::test_c[x]" is tests.a.test_b, test_c[x]."""
    path, bracket, parameters = node.partition("[")
    file, *names = path.split("::")
    *groups, name = [re.sub(r"\.py$", "", file.replace("/", ".")), *names]
    return ".".join(groups), name + bracket + parameters
