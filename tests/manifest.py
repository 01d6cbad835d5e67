"""What a session on a GPU owes, and what of it has run: a case that nothing collected would be missed by nobody."""

from collections.abc import Iterator

import pytest

from nvfp4_suite.ci.due import Pair, due
from nvfp4_suite.contract.case import Case

from .session_checks import chosen

SHOWN = 10  # of the pairs that are missing; the others are counted


class Manifest:
    """A pytest plugin, one per process. A test marked `due` answers for the (case, kernel) of its parameters."""

    def __init__(self, config, capability: tuple[int, int], problems: set[str]):
        self.config = config
        self.capability = capability
        self.problems = problems
        self.ran: set[Pair] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        if item.get_closest_marker("due"):
            item.user_properties.append(("due", list(_pair(item))))

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and not report.skipped:
            self.ran.update(tuple(value) for name, value in report.user_properties if name == "due")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self):
        if not hasattr(self.config, "workeroutput") and not chosen(self.config):
            self.problems.update(missing(due(self.capability, self.config.getoption("tier")), self.ran))


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
