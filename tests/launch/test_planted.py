"""A session on this GPU whose tests have a fault each: every one fails its own test alone, and in the right words."""

import xml.etree.ElementTree as ET
from collections import defaultdict

import pytest

from ..meta.tree import ROOT, copy_all, run_pytest

WORDS = {
    "test_a_write_just_outside": "a kernel wrote outside its buffer of 256 bytes",
    "test_a_write_far_outside": "CUDA error: an illegal memory access was encountered",
    "test_an_unwritten_row": "the output differs from the expected bits in 48 of 240 elements",
    "test_atomics_declared_repeatable": "outputs of one call, so many times each",
    "test_a_stale_graph_input": "the output differs from the expected bits",
    "test_out_of_memory": "CUDA out of memory",
    "test_a_kernel_that_hangs": "of 30 allowed: a kernel that hangs, or a deadlock",
}


@pytest.fixture(scope="module")
def session(device, tmp_path_factory):
    """The session's exit code, its output, and what failed, as {test: what was said of it}."""
    folder = tmp_path_factory.mktemp("planted")
    tree = copy_all(folder / "tree")
    (tree / "tests" / "planted").mkdir()
    (tree / "tests" / "planted" / "__init__.py").touch()
    (tree / "tests" / "planted" / "test_planted.py").write_text((ROOT / "tests" / "launch" / "planted.py").read_text())
    arguments = ("--engine=gpu", "-n", "2", "--dist=worksteal", f"--junitxml={folder / 'junit.xml'}", "tests/planted")
    leases = str(folder / "leases")  # this GPU is leased to the session that runs this test
    child = run_pytest(*arguments, cwd=tree, NVFP4_SUITE_LEASES=leases)
    return child.returncode, child.stdout + child.stderr, _failures(folder / "junit.xml")


def _failures(path) -> dict[str, str]:
    found: dict[str, str] = defaultdict(str)
    for case in ET.parse(path).iter("testcase"):
        for one in (*case.iter("failure"), *case.iter("error")):
            name = case.get("name").rpartition("::")[2]
            found[name] += f"{one.get('message')}\n{one.text}\n"
    return found


@pytest.mark.timeout(300)
def test_every_fault_fails_its_own_test_and_the_others_go_on(session):
    code, output, failures = session
    assert code == 1, output
    assert set(failures) == set(WORDS), output
    assert "8 passed" in output
    assert "its worker ended, so that others go on: the CUDA context is dead" in output


@pytest.mark.parametrize("name", WORDS)
def test_a_fault_is_said_in_the_right_words(name, session):
    assert WORDS[name] in session[2][name]
