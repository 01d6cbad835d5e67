"""Sessions on this GPU whose tests have a fault each: every one fails its own test alone, and in the right words."""

import re
import xml.etree.ElementTree as ET
from collections import defaultdict

import pytest

from ..meta.tree import ROOT, copy_all, run_pytest

PLANTED = ROOT / "tests" / "launch" / "planted.py"

# A fault that ends its worker has a session with one: tests that are right pass in the worker that takes its place.
HANGS = {"test_a_kernel_that_hangs": "of 8 allowed: a kernel that hangs, or a deadlock"}
DIES = {"test_a_write_far_outside": "CUDA error: an illegal memory access was encountered"}
OTHERS = {
    "test_a_write_just_outside": "a kernel wrote outside its buffer of 256 bytes",
    "test_an_unwritten_row": "the output differs from the expected bits in 48 of 240 elements",
    "test_atomics_declared_repeatable": "different outputs of 200 runs of one call",
    "test_a_stale_graph_input": "the output differs from the expected bits",
    "test_out_of_memory": "CUDA out of memory",  # of half of the card
}
PARTS = [pytest.param(HANGS, 1, id="hangs"), pytest.param(DIES, 1, id="dies"), pytest.param(OTHERS, 2, id="others")]


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("words", "workers"), PARTS)
def test_every_fault_fails_its_own_test_in_the_right_words_and_the_others_go_on(words, workers, device, tmp_path):
    """A session for each part, because all of them in one take longer than anything else in a session on a GPU."""
    tree, record = copy_all(tmp_path / "tree"), tmp_path / "junit.xml"
    (tree / "tests" / "planted").mkdir()
    (tree / "tests" / "planted" / "__init__.py").touch()
    (tree / "tests" / "planted" / "test_planted.py").write_text(PLANTED.read_text())
    chosen = f"-k={' or '.join([*words, 'test_right'])}"
    arguments = ("--engine=gpu", f"-n={workers}", "--dist=worksteal", chosen, f"--junitxml={record}", "tests/planted")
    leases = str(tmp_path / "leases")  # this GPU is leased to the session that runs this test
    child = run_pytest(*arguments, cwd=tree, NVFP4_SUITE_LEASES=leases)
    output, found = child.stdout + child.stderr, _failures(record)
    assert child.returncode == 1, output
    assert set(found) == set(words), output
    assert {name: saying for name, saying in words.items() if saying not in found[name]} == {}, output
    assert "8 passed" in output
    if words is DIES:
        assert "its worker ended, so that others go on: the CUDA context is dead" in output


def test_every_planted_fault_is_in_a_part(device):
    planted = set(re.findall(r"^def (test_\w+)", PLANTED.read_text(), re.MULTILINE))
    assert planted == {*HANGS, *DIES, *OTHERS, "test_right"}


def _failures(path) -> dict[str, str]:
    """What a JUnit record says of each test that failed."""
    found: dict[str, str] = defaultdict(str)
    for case in ET.parse(path).iter("testcase"):
        for one in (*case.iter("failure"), *case.iter("error")):
            name = case.get("name").rpartition("::")[2]
            found[name] += f"{one.get('message')}\n{one.text}\n"
    return found
