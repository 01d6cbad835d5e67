"""From a fault in a kernel to the page: a real session of the interpreter, whose results are reported."""

from importlib.metadata import version

from nvfp4_suite.ci.report import verdicts
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.shapes import LayerShape

from ..meta.tree import copy, run_pytest
from . import shown

CASE = Case(LayerShape(4, 2, 48, 80), 5)
TEST = """
import pytest
from nvfp4_suite.ci.recording import layer_output, reference_output
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.registry import KERNELS
from nvfp4_suite.reference import judge
from nvfp4_suite.reference.draws.layer import draw

CASE = Case(LayerShape(4, 2, 48, 80), 5)

@pytest.mark.parametrize(("case", "kernel"), [pytest.param(CASE, KERNELS["prefill_w4a16"], id="one")])
def test_kernel(case, kernel):
    inputs = draw(case)
    expected = reference_output(inputs, case, kernel.promise.orderfree_rounding)
    judge.bitwise(layer_output(kernel, inputs, case), expected, **judge.context_of(case), kernel=kernel.name)

def test_tool(): pytest.skip("no tool")
"""
RIGHT = "    tl.store(out + token * columns + column, total.to"
FAULT = "    total = tl.where((column >= 32) & (token == 2), total * 2, total)\n"


def test_a_fault_of_a_kernel_is_on_the_page(tmp_path):
    """The sum over the slots is twice what it should be in token 2, from column 32 on."""
    tree = copy(tmp_path / "tree")
    source = tree / "kernels" / "device" / "pointwise.py"
    assert source.read_text().count(RIGHT) == 1
    source.write_text(source.read_text().replace(RIGHT, FAULT + RIGHT))
    (tree / "tests" / "planted").mkdir()
    (tree / "tests" / "planted" / "__init__.py").touch()
    (tree / "tests" / "planted" / "test_planted.py").write_text(TEST)
    run = tmp_path / "artifacts" / "cpu"
    child = run_pytest(f"--artifacts={run}", f"--junitxml={run / 'junit.xml'}", cwd=tree)
    assert child.returncode == 1 and "1 failed, 1 skipped" in child.stdout, child.stdout + child.stderr

    report = shown.made(tmp_path / "artifacts")
    (told,) = report.verdicts
    assert (told.word, told.untested, told.on) == ("failed", 1, "the interpreter") and not told.run.damaged
    session, failure = report.failures
    assert "UNTESTED: tests/planted/test_planted.py::test_tool: Skipped: no tool" in session.occurrences[0].explanation
    (one,) = failure.occurrences
    wrong = [place for place, count in enumerate(one.cells.wrong[2]) if count]
    assert one.cells.shape == (5, 48) and wrong and min(wrong) >= 32 and one.cells.total == len(wrong)
    assert one.headline == f"the output differs from the expected bits in {len(wrong)} of 240 elements"
    assert one.repro[0] == f"nox -s tests -- --case {CASE.id}" and verdicts.unrecorded(told.run) == []
    assert report.matrix.cells["prefill_w4a16", "CPU", version("triton")].state == "failed"
    assert len(shown.shown(tmp_path / "artifacts").all("svg", "where")) == 1
