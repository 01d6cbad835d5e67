"""Options and fixtures of every session: which engine runs the kernels, on which device, and which cases.

Engines: "interpreter" runs kernels on the CPU in Triton's interpreter, "gpu" runs the tests that use `device` on this
host's GPU, "compile" runs tests/compile alone, without a device and without torch, "peers" runs tests/peers alone, with
other projects' packages and without Triton, "browser" runs tests/browser alone, without torch and Triton.
"""

import gc
import importlib.util
import os
import re
import sys
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

from nvfp4_suite.ci.due import within
from nvfp4_suite.ci.environment import code_changing
from nvfp4_suite.ci.seed_tests import seeds_of
from nvfp4_suite.contract.case import TIERS, Case

from . import failures, gpu_session
from .order import long_first
from .session_checks import SessionChecks

ENGINES = ("interpreter", "gpu", "compile", "peers", "browser")
TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
FOLDERS = {  # and the engines that collect them
    "browser": ("browser",),
    "compile": ("compile",),
    "hardware": ("gpu",),
    "launch": ("gpu",),
    "meta": ("interpreter",),
    "peers": ("peers",),
    "report": ("interpreter",),
    "reference": ("interpreter",),  # what is right is the same on every device
    "workflows": ("interpreter",),
}
OTHER_FOLDERS = ("interpreter", "gpu")
TRITON_CACHE = pytest.StashKey[str]()
CHECKS = pytest.StashKey[SessionChecks]()


def pytest_addoption(parser):
    group = parser.getgroup("nvfp4_suite")
    group.addoption("--engine", choices=ENGINES, default="interpreter", help="what runs the kernels")
    group.addoption(
        "--case", action="append", default=[], metavar="ID", help="run only tests of the case with this id; repeatable"
    )
    group.addoption(
        "--tier", choices=TIERS, default="all", help="--tier=ci leaves out later ones; a test without a case is of ci"
    )
    group.addoption("--artifacts", type=Path, metavar="DIR", help="where failures and the environment are written")


def pytest_configure(config):
    engine = config.getoption("engine")
    _refuse_environment(engine)
    if engine == "interpreter":
        _start_interpreter()
    _give_children_the_root()
    _use_own_triton_cache(config)
    _settle_hypothesis(config)
    config.stash[CHECKS] = checks = SessionChecks(config, ROOT)
    config.pluginmanager.register(checks)
    if engine == "gpu":
        gpu_session.start(config, checks.problems)
    elif config.getoption("artifacts"):
        failures.start(config, [])


def _refuse_environment(engine: str) -> None:
    """Variables that would make the kernels run otherwise than the session says."""
    allowed = ("TRITON_INTERPRET",) if engine == "interpreter" else ()
    if name := code_changing(*allowed):
        raise pytest.UsageError(f"{name} is set, but should be unset with --engine {engine}: other code would run")


def _start_interpreter() -> None:
    """Triton reads TRITON_INTERPRET while it is imported, so the variable has to come first."""
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise pytest.UsageError("triton was imported before TRITON_INTERPRET=1 was set (by a plugin?)")
    os.environ["TRITON_INTERPRET"] = "1"
    import nvfp4_suite.ci.interpreter  # noqa: F401  (importing it repairs Triton's interpreter)


def _give_children_the_root() -> None:
    """Child processes import this tree, also where another checkout is installed."""
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", str(ROOT))]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *others])


def _use_own_triton_cache(config) -> None:
    """A cold cache of this run's own, unless the user chose a directory. On GPUs workers share it, a lock for each key.

    Else there is one per xdist worker: two processes that write one key, or a network file system, have left mixed
    entries.
    """
    on_gpus = config.getoption("engine") == "gpu"
    starts_workers = bool(config.getoption("tx", None)) and not hasattr(config, "workerinput")
    if on_gpus and not starts_workers and importlib.util.find_spec("triton"):
        from . import compile_once

        compile_once.start()
    if hasattr(config, "workerinput"):
        cache = config.workerinput["triton_cache"]
        if cache:
            os.environ["TRITON_CACHE_DIR"] = cache if on_gpus else str(Path(cache, config.workerinput["workerid"]))
    elif "TRITON_CACHE_DIR" not in os.environ:
        directory = tempfile.TemporaryDirectory(prefix="triton-cache-", ignore_cleanup_errors=True)
        config.add_cleanup(directory.cleanup)
        config.stash[TRITON_CACHE] = os.environ["TRITON_CACHE_DIR"] = directory.name


def _settle_hypothesis(config) -> None:
    """The same examples in every run, and no deadline, which a busy machine misses. Not every engine has Hypothesis.

    On a GPU no test may use it: every worker would import it, as long as a fifth of torch takes.
    """
    if config.pluginmanager.hasplugin("hypothesispytest") and config.getoption("engine") != "gpu":
        from hypothesis import settings

        settings.register_profile("suite", derandomize=True, deadline=None, database=None)
        settings.load_profile("suite")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """As many as the cores, which compiling takes, unless they share GPUs."""
    return gpu_session.auto_workers(config) if config.getoption("engine") == "gpu" else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    node.workerinput["triton_cache"] = node.config.stash.get(TRITON_CACHE, None)
    node.workerinput["environment"] = node.config.stash.get(failures.ENVIRONMENT, None)


def pytest_report_header(config):
    engine = config.getoption("engine")
    parts = [f"engine: {engine}"]
    if engine == "gpu":
        return ", ".join([*parts, gpu_session.header(config)])
    if engine in ("interpreter", "compile"):
        import triton

        parts.append(f"triton {triton.__version__}")
    if engine in ("interpreter", "peers"):
        parts.append(f"torch {version('torch')}")  # not imported: a session that does not need it starts sooner
    return ", ".join(parts)


def pytest_ignore_collect(collection_path, config):
    """The compile gates are collected where there is no torch, so a folder is left out before it is imported.

    So is, on a GPU, a file that says nothing of `device`: every worker would import it to leave out all of its tests.
    """
    engine = config.getoption("engine")
    if engine == "gpu" and collection_path.suffix == ".py" and not _names_device(collection_path):
        return True
    return None if _belongs(collection_path, engine) else True


@cache
def _names_device(path: Path) -> bool:
    """Whether a test of this file can use `device`. A fixture of another file could take it: `_select` refuses that."""
    return re.search(r"\bdevice\b", path.read_text()) is not None


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Without looking for garbage, which took a fifth of the time: what is collected stays, and is not looked at again.

    Every worker of a session collects all tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@cache
def _belongs(path: Path, engine: str) -> bool:
    """Whether `engine` runs the tests of this path; other trees' tests are not ours to refuse."""
    if not path.is_relative_to(TESTS) or path == TESTS:
        return True
    return engine in FOLDERS.get(path.relative_to(TESTS).parts[0], OTHER_FOLDERS)


def pytest_itemcollected(item):
    for name in seeds_of(item.nodeid):
        item.add_marker(pytest.mark.seed(name))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
    """Leaves what this session runs, then the part that pytest-split says, then the long ones first.

    The order goes by the number of workers, so it comes last: the shards of two hosts must be made of one list.
    """
    _select(config, items)
    yield
    items[:] = long_first(items, getattr(config, "workerinput", {}).get("workercount", 1))


def _select(config, items) -> None:
    engine, wanted, checks = config.getoption("engine"), config.getoption("case"), config.stash[CHECKS]
    for item in items:  # pytest collects a file that the command line names without asking pytest_ignore_collect
        if not _belongs(item.path, engine):
            checks.problems.add(f"NOT FOR --engine {engine}: {item.path.relative_to(ROOT)}")
        if _uses_device(item) and not _names_device(item.path):
            checks.problems.add(f"NOT ON A GPU: {item.nodeid}: its file should name the fixture `device`")
    kept = [item for item in items if _belongs(item.path, engine)]
    if engine == "gpu":
        kept = [item for item in kept if _uses_device(item)]
        drawn = [item.nodeid for item in kept if hasattr(item.obj, "hypothesis")]
        checks.problems.update(f"NO PROFILE ON A GPU: {nodeid}: its examples would differ" for nodeid in drawn)
    kept = [item for item in kept if _tier_is_within(item, config.getoption("tier"))]
    if wanted:
        known = {case_id for item in kept for case_id in _case_ids(item)}
        checks.problems.update(f"NO SUCH CASE: {case_id}" for case_id in set(wanted) - known)
        kept = [item for item in kept if _case_ids(item) & set(wanted)]
    config.hook.pytest_deselected(items=list(set(items).difference(kept)))
    items[:] = kept
    for item in kept:  # for the JUnit record: which kernel a result is of
        item.user_properties += [("kernel", value.name) for value in _values(item) if hasattr(value, "promise")]


def _uses_device(item) -> bool:
    return "device" in getattr(item, "fixturenames", ())


def _tier_is_within(item, tier: str) -> bool:
    cases = _cases(item)
    return all(within(tier, case) for case in cases) if cases else tier != "smoke"


def _case_ids(item) -> set[str]:
    return {case.id for case in _cases(item)}


def _cases(item) -> list[Case]:
    return [value for value in _values(item) if isinstance(value, Case)]


def _values(item) -> list:
    return list(item.callspec.params.values()) if hasattr(item, "callspec") else []


def pytest_make_parametrize_id(val):
    return val.id if isinstance(val, Case) else None


@pytest.fixture(scope="session")
def device(pytestconfig) -> str:
    """The torch device that this session's kernels run on: "cpu" in the interpreter, "cuda" on a GPU."""
    return {"interpreter": "cpu", "gpu": "cuda"}[pytestconfig.getoption("engine")]
