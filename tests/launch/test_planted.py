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
    "test_a_kernel_that_hangs": "of 15 allowed: a kernel that hangs, or a deadlock",
}


@pytest.mark.long
@pytest.mark.timeout(400)
def test_every_fault_fails_its_own_test_in_the_right_words_and_the_others_go_on(device, tmp_path):
    tree, record = copy_all(tmp_path / "tree"), tmp_path / "junit.xml"
    (tree / "tests" / "planted").mkdir()
    (tree / "tests" / "planted" / "__init__.py").touch()
    (tree / "tests" / "planted" / "test_planted.py").write_text((ROOT / "tests" / "launch" / "planted.py").read_text())
    arguments = ("--engine=gpu", "-n", "2", "--dist=worksteal", f"--junitxml={record}", "tests/planted")
    leases = str(tmp_path / "leases")  # this GPU is leased to the session that runs this test
    child = run_pytest(*arguments, cwd=tree, NVFP4_SUITE_LEASES=leases)
    output, found = child.stdout + child.stderr, _failures(record)
    assert child.returncode == 1, output
    assert set(found) == set(WORDS), output
    assert {name: words for name, words in WORDS.items() if words not in found[name]} == {}, output
    assert "8 passed" in output
    assert "its worker ended, so that others go on: the CUDA context is dead" in output


def _failures(path) -> dict[str, str]:
    """What a JUnit record says of each test that failed."""
    found: dict[str, str] = defaultdict(str)
    for case in ET.parse(path).iter("testcase"):
        for one in (*case.iter("failure"), *case.iter("error")):
            name = case.get("name").rpartition("::")[2]
            found[name] += f"{one.get('message')}\n{one.text}\n"
    return found
