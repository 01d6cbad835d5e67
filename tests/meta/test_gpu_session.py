"""Sessions on GPUs, tried on hosts that are not there: who runs where, and what becomes of workers that die.

tests/launch/test_planted.py tries the same faults on the GPU that is there.
"""

import os
import re
import signal

import pytest

from ..ci import hosts
from ..ci.hosts import GIB, H200, HOSTS, L40S, cards
from .tree import copy, run_pytest

# Every test says where it runs: worker, what CUDA sees, and which share of the memory it may take.
_SEEN = """
import os
import time
import pytest
import torch

@pytest.fixture(autouse=True)
def seen(device, worker_id, request):
    with open("seen", "a") as file:
        print(worker_id, os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.fraction, request.node.name, file=file)
"""


@pytest.fixture
def session(tmp_path):
    """Runs planted tests with --engine gpu on a fake host, in a copy of the tree."""
    tree = copy(tmp_path / "tree")
    (tree / "tests" / "planted").mkdir()
    (tree / "tests" / "planted" / "__init__.py").touch()

    def run(host: list[dict], source: str, *arguments: str, whole: bool = False, **environment: str):
        (tree / "tests" / "planted" / "test_planted.py").write_text(_SEEN + source)
        environment = {
            "FAKE_HOST": str(hosts.write(tmp_path / "host.json", host)),
            "NVFP4_SUITE_LEASES": str(tmp_path / "leases"),
            "PYTHONPATH": str(hosts.FAKES),
            "COLUMNS": "200",
        } | environment
        return run_pytest("--engine", "gpu", *arguments, *([] if whole else ["tests/planted"]), cwd=tree, **environment)

    def seen() -> list[list[str]]:
        return [line.split() for line in (tree / "seen").read_text().splitlines()]

    run.seen, run.host, run.tree = seen, tmp_path / "host.json", tree
    return run


_MANY = """
@pytest.mark.parametrize("number", range(12))
def test_one(number): time.sleep(0.3)
"""


@pytest.mark.fault("triton-lang/triton#11831")
def test_workers_share_the_outer_list_and_its_memory(session):
    """gw0 to gw3 on "2,GPU-3": each sees one element, and may take half of the card without the contexts."""
    child = session(HOSTS["eight"], _MANY, "-n", "4", CUDA_VISIBLE_DEVICES="2,GPU-3")
    assert child.returncode == 0, child.stdout + child.stderr
    assert "4 workers, 69.0 GiB each" in child.stdout and "driver 580.0, 2 x NVIDIA H200" in child.stdout
    found = {(worker, visible, fraction) for worker, visible, fraction, _ in session.seen()}
    share = str(69 / 140)
    assert found == {(f"gw{n}", ("2", "GPU-3")[n % 2], share) for n in range(4)}


def test_auto_fills_every_card_that_is_free(session):
    child = session(HOSTS["two"], _MANY, "-n", "auto", "--maxprocesses", "2")
    assert child.returncode == 0, child.stdout + child.stderr
    assert {visible for _, visible, *_ in session.seen()} == {"GPU-0000-5a5a", "GPU-1111-5a5a"}
    said = re.findall(r"^GPU (\d) \S+: at work (\d+)% of \d+ s, tests: (\d+)$", child.stdout, re.MULTILINE)
    assert [index for index, *_ in said] == ["0", "1"] and sum(int(tests) for *_, tests in said) == 12, child.stdout
    assert all(int(tests) > 0 and int(share) > 0 for _, share, tests in said), said


def test_an_idle_card_shows(session):
    """One test of a second for two cards: one of them did nothing."""
    child = session(HOSTS["two"], "def test_one(): time.sleep(1)\n", "-n", "2")
    said = dict(re.findall(r"at work (\d+)% of \d+ s, tests: (\d)$", child.stdout, re.MULTILINE))
    assert said["0"] == "0" and "1" in said.values(), child.stdout


def test_alone_a_session_takes_one_card(session):
    child = session(HOSTS["two"], "def test_one(): assert 'torch' in __import__('sys').modules\n")
    assert child.returncode == 0, child.stdout + child.stderr
    assert [seen[:2] for seen in session.seen()] == [["master", "GPU-0000-5a5a"]]


@pytest.mark.parametrize(
    ("host", "outer", "message"),
    [
        ("two", "", "--engine gpu needs a CUDA GPU, but CUDA_VISIBLE_DEVICES is ''"),
        ("two", "7", "'7' is no device of this host"),
        ("mixed", None, "has GPUs of 2 kinds, NVIDIA H200 (sm_90) and NVIDIA L40S (sm_89), but a session tests one"),
    ],
)
@pytest.mark.parametrize("workers", [(), ("-n", "2"), ("-n", "auto")], ids=["alone", "xdist", "auto"])
def test_a_session_that_would_leave_cards_out_does_not_start(session, host, outer, message, workers):
    environment = {} if outer is None else {"CUDA_VISIBLE_DEVICES": outer}
    child = session(HOSTS[host], "def test_one(): pass\n", *workers, **environment)
    assert child.returncode == pytest.ExitCode.USAGE_ERROR
    assert message in child.stderr


def test_a_session_with_more_workers_than_its_cards_take_does_not_start(session):
    child = session(HOSTS["two"], "def test_one(): pass\n", "-n", "17")
    assert child.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--engine gpu starts 16 workers at most on these 2 GPUs" in child.stderr, child.stderr


@pytest.mark.parametrize(
    ("card", "workers", "little"), [(L40S, 2, False), (L40S, 4, True), (L40S | {"free": 12 * GIB}, 1, True)]
)
def test_a_session_says_where_workers_have_little_memory(session, card, workers, little):
    """They may be asked for: few tests are large."""
    child = session(cards(card), "def test_one(device): pass\n", "-n", str(workers))
    assert child.returncode == 0 and f"{workers} workers, " in child.stdout, child.stdout + child.stderr
    assert ("GiB each (the largest tests take up to 15)" in child.stdout) == little, child.stdout


def test_workers_are_told_the_environment(session):
    """All but their own GPU and variables: to find it again takes git and the assembler."""
    source = """
@pytest.mark.parametrize("number", range(4))
def test_one(number, pytestconfig):
    from tests.failures import ENVIRONMENT
    facts, told, mine = pytestconfig.stash[ENVIRONMENT], pytestconfig.workerinput["environment"], os.environ
    assert facts["sources"] is told["sources"] and facts["driver"] is told["driver"] and len(told["gpus"]) == 2
    assert [gpu["uuid"] for gpu in facts["gpus"]] == [mine["CUDA_VISIBLE_DEVICES"]]
    assert facts["variables"]["CUDA_VISIBLE_DEVICES"] == mine["CUDA_VISIBLE_DEVICES"]
"""
    child = session(HOSTS["two"], source, "-n", "2")
    assert child.returncode == 0, child.stdout + child.stderr


@pytest.mark.parametrize("watcher", [None, "NVFP4_SUITE_SANITIZER", "COVERAGE_PROCESS_START"])
def test_workers_end_at_once_unless_they_are_watched(session, watcher):
    """A tool writes what it saw while a process takes apart what it has. What tests found is told before."""
    source = """
import atexit
@pytest.mark.parametrize("number", range(3))
def test_one(number, worker_id):
    atexit.register(lambda: open(f"end-{worker_id}", "w").close())
    assert number < 2
"""
    child = session(HOSTS["two"], source, "-n", "2", **({watcher: "something"} if watcher else {}))
    assert "1 failed, 2 passed" in child.stdout and "crashed" not in child.stdout, child.stdout + child.stderr
    assert any(session.tree.glob("end-*")) == (watcher is not None)


def test_a_worker_that_cannot_start_says_why(session):
    """Those end at once that have told what they found."""
    source = """
import pytest
def pytest_sessionstart(session):
    if hasattr(session.config, "workerinput"):
        raise pytest.UsageError("this worker cannot")
"""
    (session.tree / "late.py").write_text(source)
    paths = os.pathsep.join([str(hosts.FAKES), str(session.tree)])
    child = session(HOSTS["one"], "def test_one(): pass\n", "-n", "1", "-p", "late", PYTHONPATH=paths)
    assert child.returncode != 0 and "this worker cannot" in child.stdout + child.stderr


def test_two_sessions_at_once_have_different_cards(session):
    """The second one is started while the first one's test runs."""
    source = """
import subprocess, sys
def test_outer():
    if "INNER" in os.environ:
        return
    from nvfp4_suite.ci import gpu_tests
    command = [sys.executable, "-m", "pytest", "--engine", "gpu", *gpu_tests.plugins(), "tests/planted"]
    for outer, code in (("0,1", 0), ("0", 4)):
        child = subprocess.run(command, env=os.environ | {"INNER": "1", "CUDA_VISIBLE_DEVICES": outer})
        assert child.returncode == code
"""
    child = session(HOSTS["two"], source, "-s")
    assert child.returncode == 0, child.stdout + child.stderr
    assert [visible for _, visible, *_ in session.seen()] == ["GPU-0000-5a5a", "1"]
    assert "1 workers, 139.0 GiB each; 1 GPUs are others'" in child.stdout
    child = session(HOSTS["two"], source.replace('"0", 4', '"0", 0'))
    assert child.returncode == 1
    assert "finds no free GPU: GPU 0 GPU-0000-5a5a is held by process" in child.stdout + child.stderr


def test_workers_end_soon_after_a_session_that_is_killed(session):
    source = "def test_killer(): os.kill(os.getppid(), 9); time.sleep(999)\ndef test_other(): time.sleep(999)\n"
    child = session(HOSTS["one"], source, "-n", "2")  # returns when the last of them has let go of its output
    assert child.returncode == -signal.SIGKILL
    assert session(HOSTS["one"], "def test_one(): pass\n").returncode == 0


def failures(child) -> dict[str, list[str]]:
    """What the summary says of each test that failed."""
    found: dict[str, list[str]] = {}
    for line in child.stdout.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            name, _, message = line.split("::")[1].partition(" - ")
            found.setdefault(name, []).append(message)
    return found


_DEATHS = """
def test_illegal():
    torch.cuda.dead = True  # as a kernel that writes out of bounds, and is not waited for
def test_shot(): os.kill(os.getpid(), 9)
@pytest.mark.timeout(2)
def test_hung(): time.sleep(60)
def test_oom(): raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 EiB")
@pytest.mark.parametrize("number", range(12))
def test_good(number, worker_id):
    time.sleep(0.3)
    assert not torch.cuda.dead
"""


def test_each_death_is_its_own_tests_and_the_rest_goes_on(session):
    child = session(HOSTS["two"], _DEATHS, "-n", "2", "--dist", "worksteal")
    assert child.returncode == 1
    assert "12 passed" in child.stdout, child.stdout + child.stderr
    found = failures(child)
    assert set(found) == {"test_illegal", "test_shot", "test_hung", "test_oom"}
    dead = "CUDA error: an illegal memory access was encountered"
    assert any(dead in message for message in found["test_illegal"])
    assert f"its worker ended, so that others go on: the CUDA context is dead: {dead}" in child.stdout
    assert "Nothing can run on GPU" in child.stdout
    assert "CUDA out of memory. Tried to allocate 1 EiB" in found["test_oom"][0]
    assert "of 2 allowed: a kernel that hangs, or a deadlock" in child.stdout
    assert "crashed while running 'tests/planted/test_planted.py::test_shot'" in child.stdout
    on = {worker: visible for worker, visible, *_ in session.seen()}
    assert len(on) >= 4 and set(on.values()) == {"GPU-0000-5a5a", "GPU-1111-5a5a"}  # the last to die may have no heir


_SHARED = """
from tests.held import held
SHARED = held(1)(lambda name: name)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.together(name)) for name in "aabb"])
def test_shared(name): SHARED(name)
def test_other():
    assert os.environ["USE_PYTORCH_KERNEL_CACHE"] == "0"  # two workers that make its folder at once warn
@pytest.fixture(autouse=True)
def before(request):
    with open("held", "a") as file: print(SHARED.cache_info().currsize, end=" ", file=file)
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_what_tests_share_goes_with_the_last_of_them(session, workers):
    child = session(HOSTS["one"], _SHARED, *workers)
    assert "5 passed" in child.stdout, child.stdout + child.stderr
    assert (session.host.parent / "tree" / "held").read_text() == "0 1 0 1 0 "


def test_alone_a_dead_context_ends_the_session(session):
    source = "@pytest.mark.together('a layer')\ndef test_first(): torch.cuda.dead = True\ndef test_second(): pass\n"
    child = session(HOSTS["one"], source)
    assert child.returncode == 1 and "1 failed" in child.stdout and "error" not in child.stdout.splitlines()[-1]
    assert "stopping after 1 failures" in child.stdout or "the CUDA context is dead" in child.stdout
    assert [seen[-1] for seen in session.seen()] == ["test_first"]


def test_a_lost_card_is_left_and_fails_the_session(session):
    source = """
import json
def test_fatal(worker_id):
    host = json.load(open(os.environ["FAKE_HOST"]))
    for gpu in host:
        gpu["lost"] = gpu.get("lost") or gpu["uuid"] == os.environ["CUDA_VISIBLE_DEVICES"]
    json.dump(host, open(os.environ["FAKE_HOST"], "w"))
    torch.cuda.dead = True
@pytest.mark.parametrize("number", range(8))
def test_good(number): time.sleep(0.3)
"""
    child = session(HOSTS["two"], source, "-n", "2")
    assert child.returncode == 1
    assert "8 passed" in child.stdout, child.stdout + child.stderr
    assert "LOST GPU: GPU " in child.stdout and "NVML has lost it" in child.stdout


def test_a_device_that_starts_no_worker_is_given_up(session):
    """CUDA sees another card than NVML under the first index, as its order is by speed where nobody says otherwise."""
    host = cards(H200, H200)
    source = "def test_one(): pass\n"
    wrong = "import torch\ntorch.cuda.get_device_properties = lambda i: torch.SimpleNamespace(uuid='9999', name='')\n"
    plugin = session(host, source, "--version")  # makes the host's file
    assert plugin.returncode == 0
    tree = session.host.parent / "tree"
    (tree / "wrong_card.py").write_text(wrong)
    paths = f"{hosts.FAKES}:{tree}"
    child = session(host, source, "-n", "1", "-p", "wrong_card", PYTHONPATH=paths, CUDA_VISIBLE_DEVICES="0")
    assert child.returncode == 1
    assert "3 workers in a row ended before their first test" in child.stdout
    assert "CUDA calls GPU-9999 '0': set CUDA_DEVICE_ORDER=PCI_BUS_ID" in child.stdout + child.stderr


_DUE = """
from nvfp4_suite.cases.layers import ALL
from nvfp4_suite.kernels.registry import KERNELS
PAIRS = [(case, kernel) for kernel in KERNELS.values() for case in ALL if kernel.promise.takes(case)]
LEFT = PAIRS[5]
@pytest.mark.due
@pytest.mark.parametrize(("case", "kernel"), [pair for pair in PAIRS if pair != LEFT])
def test_due(case, kernel): pass
def test_name():
    with open("left", "w") as file:
        print(LEFT[0].id, "by", LEFT[1].name, end="", file=file)
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_a_case_that_no_test_runs_is_untested(session, workers):
    child = session(HOSTS["one"], _DUE, *workers, whole=True)
    assert child.returncode == 1, child.stdout + child.stderr
    left = (session.host.parent / "tree" / "left").read_text()
    assert [line for line in child.stdout.splitlines() if line.startswith("UNTESTED")] == [f"UNTESTED: {left}"]
    assert session(HOSTS["one"], _DUE).returncode == 0  # chosen by hand


def test_a_case_that_is_skipped_has_not_run(session):
    source = _DUE.replace("def test_due(case, kernel): pass", "def test_due(case, kernel): pytest.skip('no')")
    child = session(HOSTS["one"], source, whole=True)
    assert child.returncode == 1
    assert re.search(r"UNTESTED: \d+ more of the \d+ cases by kernel that are due on this GPU", child.stdout)


def test_what_is_due_goes_by_the_tier(session):
    source = _DUE.replace("if pair != LEFT", "if pair[0].tier != 'all'")
    child = session(HOSTS["one"], source, whole=True)
    assert child.returncode == 1
    assert "UNTESTED: orderfree-" in child.stdout
    child = session(HOSTS["one"], source, "--tier=ci", whole=True)
    assert child.returncode == 0, child.stdout
