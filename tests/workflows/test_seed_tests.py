"""Every name of a seed's test stands for tests that are here, in the session that the nightly run has for them."""

import pytest

from nvfp4_suite.ci.seed_tests import COMPILE_GATES, LEFT_OUT, SEED_TESTS, seeds_of

from ..meta.tree import ROOT, run_pytest

PARTS = {part for parts in SEED_TESTS.values() for part in parts}
COMPILED = {part for part in PARTS if part.startswith("tests/compile/")}


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "parts"), [("interpreter", PARTS - COMPILED - {COMPILE_GATES}), ("compile", COMPILED)]
)
def test_every_part_is_collected_and_marked(engine, parts):
    files = sorted({part.partition("::")[0] for part in parts})
    child = run_pytest("--engine", engine, "--collect-only", "-q", "-m", "seed", *files, cwd=ROOT)
    assert child.returncode == 0, child.stdout + child.stderr
    found = {line.partition("[")[0] for line in child.stdout.splitlines() if "::" in line}
    assert found == parts


def test_a_test_belongs_to_all_names_that_have_it():
    assert seeds_of("tests/moe/test_orderfree.py::test_kernel_equals_the_reference[case-kernel]") == [
        "tests/moe/test_nvfp4_backends.py"
    ]
    assert seeds_of("tests/moe/test_orderfree.py::test_kernel_equals_the_reference_not") == []


def test_no_name_is_left_out_and_here_too():
    assert not set(SEED_TESTS) & set(LEFT_OUT)
    assert all(SEED_TESTS.values()) and all(LEFT_OUT.values())
