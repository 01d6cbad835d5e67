"""What fails a session although none of its tests failed: a skip, a case that does not exist, a file loaded twice."""

import sys
from collections import defaultdict
from pathlib import Path

import pytest

from nvfp4_suite.ci.files import write_json

RECORD = "session.json"


class SessionChecks:
    """A pytest plugin, one per process: xdist's workers tell the controller what they found, and it judges.

    `problems` are lines for the end of the output; any of them fails the session.
    """

    def __init__(self, config, root: Path):
        self.config = config
        self.root = root
        self.problems: set[str] = set()

    def pytest_runtest_logreport(self, report):
        self._note_skip(report)

    def pytest_collectreport(self, report):
        self._note_skip(report)

    def _note_skip(self, report) -> None:
        """A skip is not a pass, unless the user chose the tests by hand. An expected failure is no skip."""
        if report.skipped and not hasattr(report, "wasxfail") and not selected_by_hand(self.config):
            self.problems.add(f"UNTESTED: {report.nodeid}: {report.longrepr[2]}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.problems.update(getattr(node, "workeroutput", {}).get("problems", ()))

    def pytest_sessionfinish(self, session):
        self.problems.update(f"LOADED TWICE: {text}" for text in loaded_twice(self.root))
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["problems"] = sorted(self.problems)
        else:
            if self.problems and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
            if self.config.getoption("artifacts"):
                self._write(session.exitstatus)

    def _write(self, exit_code: int) -> None:
        """What a report has to know of this session beside its tests' results. `whole`: nobody chose among them."""
        asked = {name: self.config.getoption(name) for name in ("engine", "tier")}
        told = {"whole": not chosen(self.config), "exit": int(exit_code), "problems": sorted(self.problems)}
        write_json(self.config.getoption("artifacts") / RECORD, asked | told)

    def pytest_terminal_summary(self, terminalreporter):
        for problem in sorted(self.problems):
            terminalreporter.write_line(problem, red=True)


def selected_by_hand(config) -> bool:
    """Whether the command line picks single tests: --case, -k, -m or a node id."""
    options = config.option
    return bool(options.case or options.keyword or options.markexpr) or any("::" in str(arg) for arg in config.args)


def chosen(config) -> bool:
    """Whether the user chose the tests by hand, by file or folder too, or wants to see them only."""
    by_path = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    return by_path or selected_by_hand(config) or config.getoption("collectonly")


def loaded_twice(root: Path) -> list[str]:
    """The files under `root` that sys.modules holds under two names, each then with its own classes and caches."""
    names = defaultdict(list)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")  # no getattr: a lazy module would import itself
        path = Path(file).resolve() if file and "site-packages" not in file else None
        if path and path.is_relative_to(root) and "site-packages" not in path.parts:
            names[path.relative_to(root)].append(name)
    return [f"{path} as {' and '.join(sorted(found))}" for path, found in names.items() if len(found) > 1]
