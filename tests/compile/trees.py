"""Copies of the tree with a fault planted in a kernel, and what the gates say of them."""

import shutil
from pathlib import Path

import pytest

from nvfp4_suite.ci import gate_elsewhere, gates
from nvfp4_suite.ci.gate_outcome import Outcome
from nvfp4_suite.ci.gate_run import Settings
from nvfp4_suite.kernels.launch import Launch

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("nvfp4_suite", "contract", "kernels", "ci", "pyproject.toml")


def copied(to: Path) -> Path:
    """What gates need of the tree, in the new folder `to`."""
    for name in ROOMS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, to / name)
    return to


def planted(to: Path, file: str, right: str, wrong: str) -> Path:
    """The tree, but `right`, which kernels/device/`file` has once, is `wrong`."""
    path = copied(to) / "kernels" / "device" / file
    source = path.read_text()
    assert source.count(right) == 1
    path.write_text(source.replace(right, wrong))
    return to


def outcomes(
    tree: Path, launch: Launch, *capabilities: tuple[int, int], directory: Path | None = None
) -> list[Outcome]:
    return gate_elsewhere.outcomes(tree, [(each, launch) for each in capabilities], Settings(1, directory))


def refused(outcome: Outcome, message: str) -> None:
    """The gate is red, with this message."""
    with pytest.raises(gates.GateError, match=message):
        if outcome.error:
            raise gates.GateError(outcome.error)
        gates.check(outcome.facts, outcome.launch, outcome.capability)


def passes(outcome: Outcome) -> None:
    assert not outcome.error
    gates.check(outcome.facts, outcome.launch, outcome.capability)
