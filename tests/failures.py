"""Every failure of a case as a bundle on disk, and what the session's results depend on beside them."""

import shutil
from pathlib import Path

import pytest

from nvfp4_suite.ci import bundle, host, wrong_cells
from nvfp4_suite.ci.bundle import Bundle
from nvfp4_suite.contract.case import Case

from .manifest import RECORD as MANIFEST
from .session_checks import RECORD

ENVIRONMENT = pytest.StashKey[dict]()
MOST = 20  # bundles of one process: where more tests fail, they fail alike


class Failures:
    """A pytest plugin, one per process, of sessions that have --artifacts."""

    def __init__(self, folder: Path, facts: dict):
        self.folder = folder
        self.facts = facts
        self.written = 0

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        cases = [value for value in values if isinstance(value, Case)]
        if report.when == "call" and report.failed and cases and self.written < MOST:
            self.written += 1
            kernel = next((value for value in values if hasattr(value, "promise")), None)
            wrong = getattr(call.excinfo.value, "wrong", None)
            report.sections.append(("bundle", self._write(report, cases[0], kernel, wrong)))
        return report

    def _write(self, report, case: Case, kernel, wrong) -> str:
        """The command that replays the failure; or what went wrong with its bundle, which hides no failure."""
        try:
            told = (report.nodeid, case, kernel and kernel.name, report.longreprtext, self.facts)
            cells = None if wrong is None else wrong_cells.counts(wrong)
            path = bundle.write(self.folder, Bundle(*told, bundle.small_inputs(case), cells), _ptx(kernel, case))
            return f"python -m nvfp4_suite replay {path}"
        except Exception as error:
            return f"no bundle: {type(error).__name__}: {error}"


def _ptx(kernel, case: Case) -> dict[str, str]:
    """The code that ran on the GPU; nothing where it cannot run once more."""
    import torch

    if kernel is None or not torch.cuda.is_available():
        return {}
    try:
        return bundle.ptx_of(kernel, case)
    except Exception as error:
        return {"none": f"// no PTX: {error}"}


def start(config, devices: list) -> None:
    """Registers the plugin where failures are wanted, and leaves the session's environment in the stash.

    Workers are told it: each would have to run git and the assembler, and to read all sources.
    """
    given, artifacts = getattr(config, "workerinput", {}).get("environment"), config.getoption("artifacts")
    facts = host.for_this_process(given, devices) if given else host.report(devices)
    config.stash[ENVIRONMENT] = facts
    if artifacts:
        config.pluginmanager.register(Failures(artifacts / "failures", facts))
        if not hasattr(config, "workerinput"):
            _remove_earlier(config, artifacts)
            host.write(artifacts, facts)


def _remove_earlier(config, artifacts: Path) -> None:
    """An earlier session's results, which would pass for those of this one, should it be killed; nothing else there."""
    for old in (artifacts / "failures").glob("*/bundle.json"):
        shutil.rmtree(old.parent)
    for name in (RECORD, MANIFEST):
        (artifacts / name).unlink(missing_ok=True)
    if junit := config.getoption("xmlpath", None):
        Path(junit).unlink(missing_ok=True)
