"""What a session on a GPU owes, and what of it has run: a case that nothing collected would be missed by nobody.

A shard, one of several sessions that pytest-split gives their parts of the tests, owes what is not in another's part.
Each leaves manifest.json, by which ci/night.py sees that all of them together have run all.
"""

import json
from collections.abc import Iterator

import pytest

from nvfp4_suite.ci.due import Pair, due
from nvfp4_suite.ci.files import write_text
from nvfp4_suite.contract.case import Case

from .session_checks import chosen

RECORD = "manifest.json"
SHOWN = 10  # of the pairs that are missing; the others are counted


class Manifest:
    """A pytest plugin, one per process. A test marked `due` answers for the (case, kernel) of its parameters."""

    def __init__(self, config, capability: tuple[int, int], problems: set[str]):
        self.config = config
        self.capability = capability
        self.problems = problems
        self.ran: set[Pair] = set()
        self.elsewhere: set[Pair] = set()  # in the part of another shard
        self.owed: set[Pair] | None = None

    def pytest_deselected(self, items):
        if self.config.getoption("splits", None):
            self.elsewhere.update(_pair(item) for item in items if item.get_closest_marker("due"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self):
        """What is owed is found while xdist's workers start, because it takes torch, which this process has not yet."""
        if not hasattr(self.config, "workerinput") and not chosen(self.config):
            self.owed = due(self.capability, self.config.getoption("tier"))
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        if item.get_closest_marker("due"):
            item.user_properties.append(("due", list(_pair(item))))

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and not report.skipped:
            self.ran.update(tuple(value) for name, value in report.user_properties if name == "due")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        """Tests are collected, and shared out among shards, by xdist's workers alone."""
        self.elsewhere.update(map(tuple, getattr(node, "workeroutput", {}).get("elsewhere", ())))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self):
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["elsewhere"] = sorted(self.elsewhere)
        elif self.owed is not None:
            self.problems.update(missing(self.owed - self.elsewhere, self.ran))
            self._write(self.owed)

    def _write(self, owed: set[Pair]) -> None:
        """What all shards together owe, and what of it ran in this one."""
        if folder := self.config.getoption("artifacts"):
            shard = [self.config.getoption("group", None) or 1, self.config.getoption("splits", None) or 1]
            document = {"shard": shard, "due": sorted(owed), "ran": sorted(self.ran & owed)}
            write_text(folder / RECORD, json.dumps(document) + "\n")


def _pair(item) -> Pair:
    values = item.callspec.params.values()
    (case,) = (value for value in values if isinstance(value, Case))
    (kernel,) = (value.name for value in values if hasattr(value, "promise"))
    return case.id, kernel


def missing(owed: set[Pair], ran: set[Pair]) -> Iterator[str]:
    """A line for each pair that was owed and did not run, up to SHOWN of them."""
    untested = sorted(owed - ran)
    for case, kernel in untested[:SHOWN]:
        yield f"UNTESTED: {case} by {kernel}"
    if len(untested) > SHOWN:
        yield f"UNTESTED: {len(untested) - SHOWN} more of the {len(owed)} cases by kernel that are due on this GPU"
