"""golden/exact.json is whole, and every engine still gives what it says."""

import json
import subprocess
import sys

import pytest

from nvfp4_suite.cases.layers import ATOMICS, ORDERFREE, W4A4, W4A16
from nvfp4_suite.ci import exact, golden_due, recording
from nvfp4_suite.ci.golden import GOLDEN, ROOT
from nvfp4_suite.ci.outcomes import TOOL
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.kernel import Kernel

from ..engine import INTERPRETED, runnable
from ..moe.subject import expected_of, inputs_of, run_kernel, taken

ENTRIES = exact.read(GOLDEN)
DUE = golden_due.due("reference", ORDERFREE)
SCHEMA = json.loads(GOLDEN.with_name(exact.SCHEMA).read_text(encoding="utf-8"))


def test_the_file_is_as_the_tool_writes_it():
    import jsonschema  # a GPU host may lack it

    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(json.loads(GOLDEN.read_text(encoding="utf-8")), SCHEMA)
    assert GOLDEN.read_text(encoding="utf-8") == exact.text(ENTRIES)


def test_every_case_has_an_entry_and_every_entry_a_case():
    assert {exact.key(case, form) for case, form in DUE} == ENTRIES.keys()


@pytest.mark.parametrize("engine", ["reference", "interpreter", "sm_90 triton 3.6.0", "sm_90 triton 3.8.0"])
def test_an_engine_confirmed_what_is_due_on_it(engine):
    """Where one is missing: `golden record --engine E --case ID`; on a GPU host, see golden/README.md."""
    due = {exact.key(case, form) for case, form in golden_due.due(engine.split(" ")[0], ORDERFREE)}
    assert len(due) >= 78
    missing = {key for key in due if engine not in ENTRIES.get(key, {"confirmed_by": ()})["confirmed_by"]}
    awaited = golden_due.AWAITED.get(engine, golden_due.Awaited((), ()))
    assert missing == {key for key in due if awaited.covers(exact.case_id(key))}


def test_the_command_verifies_one_case():
    command = [sys.executable, "-m", "nvfp4_suite.ci.golden", "verify", "--case", ORDERFREE[0].id]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stdout.splitlines()[:1]) == (0, ["1 as recorded"]), run.stdout + run.stderr


@pytest.mark.parametrize(("case", "rounding"), DUE, ids=[exact.key(*pair) for pair in DUE])
def test_the_reference_gives_the_recorded_digest(case: Case, rounding: str):
    assert recording.digest(expected_of(case, rounding)) == _recorded(case, rounding)


# In the interpreter a case of each table shows the path. The others follow: tests/moe holds kernels to the same bits.
SHOWN = (W4A16[0], W4A4[0], *(case for case in ATOMICS if case.format == "w4a4")) if INTERPRETED else ORDERFREE


@pytest.mark.parametrize(("case", "kernel"), taken(runnable(SHOWN)))
def test_a_kernel_gives_the_recorded_digest(case: Case, kernel: Kernel, device):
    found = recording.digest(run_kernel(kernel, inputs_of(case), device, **case.options))
    assert found == _recorded(case, kernel.promise.orderfree_rounding)


def _recorded(case: Case, rounding: str) -> str:
    key = exact.key(case, rounding)
    assert key in ENTRIES, f"UNTESTED: {key} is not in golden/exact.json; {TOOL} record --engine E --case {case.id}"
    return ENTRIES[key]["digest"]
