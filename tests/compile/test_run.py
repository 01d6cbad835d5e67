"""A run of the gates: crashes, PTX that is shared, verdicts, the report and comparisons."""

import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from dataclasses import replace

import pytest

from nvfp4_suite.ci import (
    compile_gates,
    gate_diff,
    gate_elsewhere,
    gate_report,
    gate_run,
    gate_work,
    gates,
)
from nvfp4_suite.ci.gate_outcome import Outcome
from nvfp4_suite.ci.gate_report import Judged
from nvfp4_suite.ci.gate_run import Settings
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.plan import plan_layer

from .trees import ROOT, copied, planted

ONE = Settings(1)
FAMILY = ((10, 0), (10, 3), (11, 0))


def small(stage: str = "sum_routes", dtype: str = "bf16"):
    return plan_layer(Gpu("", (10, 0)), LayerShape(256, 8, 2048, 512), 1, dtype=dtype, weight_on_input=True).launch(
        stage
    )


LAUNCH = small()


class _EndsTheProcess:
    """Stands for an assertion inside the compiler: the process that receives it aborts."""

    def __reduce__(self):
        return os.abort, ()


def test_a_crash_costs_the_gate_that_crashed():
    crashing = replace(small("weigh_input"), constexprs=(("BLOCK", _EndsTheProcess()),))
    found = gate_run.run([((9, 0), LAUNCH), ((9, 0), crashing), ((9, 0), small(dtype="fp16"))], ONE)
    assert [bool(each.facts) for each in found] == [True, False, True]
    assert "the compiler ended its process" in found[1].error


def test_a_kernel_that_cannot_be_imported_costs_its_gate():
    """An older Triton may lack what a module asks for."""
    found = gate_run.run([((9, 0), replace(LAUNCH, kernel="pointwise.no_such_function")), ((9, 0), LAUNCH)], ONE)
    assert "on sm_90: AttributeError(" in found[0].error
    assert found[1].facts


def test_architectures_of_a_family_share_ptx_that_one_launch_proved_the_same():
    listed = [(capability, small(dtype=dtype)) for dtype in ("bf16", "fp16") for capability in FAMILY]
    heads = [each.facts.head for each in gate_run.run(listed, ONE)]
    assert heads == ["", "", "", "", "sm_100", "sm_100"]
    whole = gate_run.run(listed, replace(ONE, whole=True))
    assert [each.facts.head for each in whole] == [""] * 6
    assert [each.facts.sass for each in whole] == [each.facts.sass for each in gate_run.run(listed, ONE)]


@pytest.mark.parametrize("field", ["ptx", "shared_bytes"])
def test_what_differs_is_not_shared(field):
    first, other = gate_run.run([((10, 0), LAUNCH), ((10, 3), LAUNCH)], ONE)
    assert gate_run._alike([[first, other]]) == {((10, 3), LAUNCH.kernel, None)}
    different = replace(other, facts=replace(other.facts, **{field: type(getattr(other.facts, field))(1)}))
    assert gate_run._alike([[first, different]]) == set()
    assert gate_run._alike([[first, replace(other, facts=None, error="no")]]) == set()


def test_each_instruction_of_a_kernel_is_proved_by_the_longest_launch_that_most_architectures_have():
    longest, long, short = (replace(LAUNCH, constexprs=(("BLOCK", size),)) for size in (1024, 512, 256))
    other = replace(small(dtype="fp16"), instruction="wgmma")
    listed = [(capability, launch) for launch in (short, long, other) for capability in FAMILY]
    proofs, others = gate_run._split(gate_run._groups([*listed, ((10, 0), longest), ((10, 3), longest)]))
    assert [[launch for _, launch in group] for group in proofs] == [[long] * 3, [other] * 3]
    assert [group[0][1] for group in others] == [longest, short]


def test_ptx_comes_from_the_first_architecture_that_has_the_launch():
    outcomes = gate_work.family_outcomes([(each, LAUNCH) for each in FAMILY[1:]], frozenset(FAMILY[1:]), None)
    assert [each.facts.head for each in outcomes] == ["", "sm_103"]


def test_every_gate_has_an_outcome_in_its_place():
    """Also where one binary has another stage on another architecture."""
    listed = [((10, 0), LAUNCH), ((8, 0), small("weigh_input")), ((10, 3), replace(LAUNCH, stage="another"))]
    assert [(each.capability, each.launch) for each in gate_run.run(listed, ONE)] == listed


LONG_RUN = """
from pathlib import Path
from nvfp4_suite.ci import gate_run, gates
if __name__ == "__main__":
    listed = [gate for gate in gates.launches() if gate[0] == (9, 0) and "pointwise" in gate[1].kernel]
    gate_run.run(listed, gate_run.Settings(1, Path("cache")), lambda each: print("one", flush=True))
"""


def test_the_run_after_one_that_was_killed_is_right(tmp_path):
    """Nothing stays behind but what it had found, and no child goes on."""
    (tmp_path / "run.py").write_text(LONG_RUN)
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    child = subprocess.Popen([sys.executable, "run.py"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "one\n"
    child.send_signal(signal.SIGKILL)
    child.stdout.close()
    child.wait()
    listed = [gate for gate in gates.launches() if gate[0] == (9, 0) and "pointwise" in gate[1].kernel]
    found = gate_run.run(listed, Settings(1, tmp_path / "cache"))
    assert [bool(each.facts) for each in found] == [True] * len(listed)
    assert 0 < sum(each.reused for each in found) < len(listed)
    again = gate_run.run(listed, Settings(1, tmp_path / "cache"))
    assert [each.facts for each in again] == [each.facts for each in found]
    assert all(each.reused for each in again)
    assert _children_of(child.pid) == []


def _children_of(parent: int) -> list[str]:
    time.sleep(0.5)
    lines = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True).stdout.splitlines()
    return [line for line in lines if "run.py" in line and line.split()[1] in (str(parent), "1")]


FAILING = Outcome(
    (11, 0), LAUNCH, None, "sum_routes on sm_110 does not compile, but should: Value 'sm_110a' is not known"
)


@pytest.fixture(scope="module")
def passing() -> list[Judged]:
    found = gate_run.run([((9, 0), LAUNCH), ((12, 0), LAUNCH)], ONE)
    return [compile_gates.judge(each, "3.8.0") for each in found]


@pytest.fixture(scope="module")
def judged(passing) -> list[Judged]:
    known = Judged("3.6.0", FAILING, "known", FAILING.error)
    return [*passing, known, Judged("3.8.0", FAILING, "failed", FAILING.error)]


def test_the_report_says_failures_first_how_to_repeat_them_and_how_many(judged):
    lines = gate_report.text(judged, {"3.8.0": 12.3}).splitlines()
    assert lines[0] == f"FAILED: {FAILING.error}"
    assert lines[1] == "    nox -s compile-gates -- --launch sum_routes-bf16-block512-4w-1s --arch 110 --triton 3.8.0"
    assert lines[2].startswith("known: 1 gates: Triton 3.6.0: the assembler that it ships does not know sm_110")
    matrix = [[cell.strip() for cell in line.split("|")] for line in lines if "|" in line]
    assert matrix == [
        ["arch", "3.8.0", "3.6.0"],
        ["sm_90", "1 passed", ""],
        ["sm_110", "1 FAILED", "1 known"],
        ["sm_120", "1 passed", ""],
    ]
    assert any(line.startswith("Triton 3.8.0, ptxas-blackwell ") and line.endswith(": sm_120") for line in lines)
    assert f"Triton 3.8.0: 3 of {len(gates.launches()):,} launches in 12 s" in lines[-2]
    assert lines[-1] == "1 of 4 gates are red"


def test_the_summary_for_ci_has_the_same(judged, tmp_path):
    text = gate_report.markdown(judged, {})
    assert f"- FAILED: {FAILING.error}\n  `nox -s compile-gates" in text
    assert "| sm_110 | 1 FAILED | 1 known |" in text
    gate_report.write_junit(tmp_path / "junit.xml", judged)
    suite = xml.parse(tmp_path / "junit.xml").getroot()[0]
    assert [suite.get(name) for name in ("tests", "failures", "skipped")] == ["4", "1", "1"]
    assert [case.find("failure") is not None for case in suite] == [False, False, False, True]
    told = [{each.get("name"): each.get("value") for each in case.find("properties")} for case in suite]
    assert [each["function"] for each in told] == [LAUNCH.kernel] * 4
    assert ["facts" in each for each in told] == [True, True, False, False]
    assert "registers=" in told[0]["facts"] and told[0]["assembler"].startswith("ptxas ")
    assert gate_report.markdown(judged * 60, {}).count("- FAILED") == gate_report.MARKDOWN_FAILURES


@pytest.mark.parametrize(
    ("asked", "found"),
    [("3.8", ["3.8.0"]), ("3.6.0,3.9", ["3.6.0", "3.9.0"]), ("all", ["3.6.0", "3.7.1", "3.8.0", "3.9.0"])],
)
def test_releases_are_named_in_whole_or_in_part(asked, found):
    assert compile_gates.versions(asked) == found


@pytest.mark.parametrize(
    "arguments", [("--triton", "3.5"), ("--triton", "3"), ("--arch", "99"), ("--launch", "nothing")]
)
def test_what_is_not_there_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as exit:
        compile_gates.main([*arguments])
    assert exit.value.code == 2


def test_another_triton_than_the_installed_one_is_refused(capsys):
    with pytest.raises(SystemExit):
        compile_gates.main(["--triton", "3.9", "--arch", "90"])
    assert "Triton 3.9.0 should be here, but 3." in capsys.readouterr().err


def test_a_comparison_says_what_differs_and_in_how_many(tmp_path):
    right = "total = tl.zeros((BLOCK,), tl.float32)"
    tree = planted(tmp_path / "tree", "pointwise.py", right, right.replace("zeros((BLOCK,)", "full((BLOCK,), 1.0"))
    listed = [((9, 0), LAUNCH), ((9, 0), small("weigh_input"))]
    before = gate_elsewhere.outcomes(tree, listed, ONE)
    here = gate_run.run(listed, ONE)
    lines = gate_diff.explained("main", before, here)
    assert lines[0] == "same SASS in 1 of 2 launches since main; 1 differ:"
    assert lines[1].endswith("ptx, sass:") and lines[2] == "    sm_90-sum_routes-bf16-block512-4w-1s"
    assert gate_diff.explained("main", here, here) == ["same SASS in 2 of 2 launches since main"]
    lost = [replace(each, facts=None, error="no") for each in here]
    assert "  does not compile any more:" in gate_diff.explained("main", here, lost)
    neither = gate_diff.explained("main", lost, [lost[0], here[1]])
    assert neither[0] == "same SASS in 0 of 1 launches since main, 1 compile in neither; 1 differ:"
    assert neither[1] == "  did not compile:"
    assert "2 launches were not there:" in gate_diff.explained("main", [], here)


def test_the_launches_of_another_tree_are_those_that_it_lists_for_a_release(tmp_path):
    tree = copied(tmp_path / "tree")
    for triton in ("3.6.0", "3.8.0"):
        assert gate_elsewhere.listed(tree, triton) == list(gates.launches(triton))
    assert gates.launches("3.6.0") != gates.launches("3.8.0")


def test_a_revision_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(gate_elsewhere.NoGates, match="git archive no-such-revision fails"):
        gate_elsewhere.checked_out("no-such-revision", tmp_path)
