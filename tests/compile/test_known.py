"""Failures of toolchains: what the table says, all that it says, and nothing else; compiled once, and not shown."""

import os
import sys
from dataclasses import replace
from functools import partial

import pytest

from nvfp4_suite.ci import gate_compile, gate_report, gate_run, gate_work, gates
from nvfp4_suite.ci.gate_facts import GateError
from nvfp4_suite.ci.gate_known import Known, known_failure, verdict
from nvfp4_suite.ci.gate_outcome import Outcome
from nvfp4_suite.ci.gate_report import Judged
from nvfp4_suite.ci.gate_run import Settings
from nvfp4_suite.ci.gate_said import excerpt
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.plan import plan_layer

LAUNCH = plan_layer(Gpu("", (9, 0)), LayerShape(256, 8, 2048, 512), 1, weight_on_input=True).launch("sum_routes")

FAILING = Outcome(
    (11, 0), LAUNCH, None, "sum_routes on sm_110 does not compile, but should: Value 'sm_110a' is not known"
)
TABLE = (
    Known(("3.6.0",), ((11, 0),), "*", "no such pass", "a dot", "https://example.org", "*kind::mxf4nvf4"),
    Known(("3.6.0",), ((11, 0),), "pointwise.*", "Value 'sm_110", "an old assembler", "https://example.org"),
)
NATIVE = replace(FAILING, launch=replace(LAUNCH, instruction="tcgen05 kind::mxf4nvf4"))


@pytest.mark.parametrize(
    ("outcome", "error", "triton", "expected"),
    [
        (FAILING, FAILING.error, "3.6.0", "known"),
        (FAILING, FAILING.error, "3.8.0", "failed"),
        (FAILING, "it spills", "3.6.0", "failed"),
        (FAILING, "", "3.6.0", "unexpected pass"),
        (FAILING, "", "3.8.0", "passed"),
        (replace(FAILING, capability=(10, 0)), FAILING.error, "3.6.0", "failed"),
        (replace(FAILING, launch=replace(LAUNCH, kernel="gemm.g")), FAILING.error, "3.6.0", "failed"),
        (NATIVE, "no such pass", "3.6.0", "known"),
        (NATIVE, FAILING.error, "3.6.0", "failed"),
        (NATIVE, "", "3.6.0", "unexpected pass"),
        (FAILING, "no such pass", "3.6.0", "failed"),
    ],
)
def test_only_what_the_table_says_is_known_to_fail(outcome, error, triton, expected):
    assert verdict(outcome, error, triton, TABLE) == expected


SPILL = "the stack is 16 bytes a thread (spilled registers), but should be 0"
SPILLING = (Known(("3.7.1",), ((9, 0),), "pointwise.*", SPILL, "outside of the loop", compiles=True),)


@pytest.fixture(scope="module")
def compiled() -> Outcome:
    return gate_run.run([((9, 0), LAUNCH)], Settings(1))[0]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (f"sum_routes on sm_90: {SPILL}", "known"),
        (f"sum_routes on sm_90: {SPILL.replace('16', '216')}", "failed"),
        (f"sum_routes on sm_90: there is no cubin, but should be one; {SPILL}", "failed"),
        (f"sum_routes on sm_90: {SPILL}; local memory is 8 bytes a thread, but should be 0", "failed"),
        ("", "unexpected pass"),
    ],
    ids=["as it says", "more bytes", "more before", "more behind", "nothing"],
)
def test_what_compiles_has_all_that_is_wrong_in_the_table(compiled, error, expected):
    assert verdict(compiled, error, "3.7.1", SPILLING) == expected


def test_what_should_compile_and_does_not_is_red(compiled):
    assert verdict(replace(compiled, facts=None), f"on sm_90: {SPILL}", "3.7.1", SPILLING) == "failed"
    line = replace(SPILLING[0], compiles=False)
    assert verdict(compiled, f"on sm_90: {SPILL}", "3.7.1", (line,)) == "failed"


def test_the_spill_of_an_a100_is_known_in_one_launch_of_one_release_alone():
    found = {
        (triton, gates.launch_id(*gate))
        for triton in ("3.6.0", "3.7.1", "3.8.0", "3.9.0")
        for gate in gates.launches(triton)
        if (known := known_failure(*gate, triton)) and known.compiles
    }
    assert found == {("3.7.1", "sm_80-gate_up-w4a16_gemm-bf16-m128-n64-kb32-unit32-4w-3s")}


BROKEN = replace(LAUNCH, constexprs=(("BLOCK", 500),))  # arange's range must be a power of 2
ITS_LINE = Known((), ((9, 0),), "pointwise.sum_routes", "arange's range must be a power of 2", "it cannot")


@pytest.fixture
def attempts(monkeypatch) -> list:
    """What was compiled, in this process."""
    import triton

    found, compiling = [], gate_work.binary_of
    monkeypatch.setattr(gate_work, "binary_of", lambda *gate: found.append(gate) or compiling(*gate))
    knowing(monkeypatch, replace(ITS_LINE, tritons=(triton.__version__,)))
    return found


def knowing(monkeypatch, *table: Known) -> None:
    monkeypatch.setattr(gate_work, "known_failure", partial(known_failure, table=table))


def outcome(directory, launch=BROKEN, capability=(9, 0)) -> Outcome:
    (found,) = gate_work.family_outcomes([(capability, launch)], frozenset(), directory)
    return found


def test_a_known_failure_is_compiled_once(attempts, tmp_path):
    first, again = outcome(tmp_path), outcome(tmp_path)
    assert len(attempts) == 1 and (first.reused, again.reused) == (False, True)
    assert again.error == first.error and "must be a power of 2" in again.error and again.facts is None


def test_a_failure_of_another_launch_stage_or_architecture_is_not_taken_for_it(attempts, tmp_path):
    outcome(tmp_path)
    others = [(replace(BROKEN, num_warps=8), (9, 0)), (replace(BROKEN, stage="other"), (9, 0)), (BROKEN, (8, 0))]
    assert not any(outcome(tmp_path, *each).reused for each in others) and len(attempts) == 4


def test_a_failure_whose_line_is_gone_is_compiled_again(attempts, tmp_path, monkeypatch):
    outcome(tmp_path)
    knowing(monkeypatch)
    assert not outcome(tmp_path).reused and len(attempts) == 2
    outcome(tmp_path)
    assert len(attempts) == 3  # nor is a failure kept that no line has


@pytest.mark.parametrize(
    "error",
    [
        GateError("sum_routes on sm_90 does not compile, but should: [Errno 28] No space left on device"),
        GateError("sum_routes on sm_90 does not compile, but should: ptxas fails with signal 9"),
        MemoryError("arange's range must be a power of 2"),
    ],
    ids=["a full disk", "killed", "no memory"],
)
def test_a_failure_for_another_reason_is_not_kept(attempts, tmp_path, monkeypatch, error):
    def fails(*gate):
        raise error

    with monkeypatch.context() as once:
        once.setattr(gate_work, "binary_of", fails)
        assert outcome(tmp_path).error
    assert not list(tmp_path.rglob("*.json"))
    assert not outcome(tmp_path).reused and len(attempts) == 1


def test_a_damaged_failure_is_none(attempts, tmp_path):
    outcome(tmp_path)
    (path,) = tmp_path.rglob("*.json")
    whole = path.read_text()
    for damaged in (whole[:-20], whole.replace("a power", "no power"), "null"):
        path.write_text(damaged)
        assert not outcome(tmp_path).reused


class _SaysWhy:
    """Stands for an assertion inside the compiler, which says much and ends the process that receives it."""

    def __reduce__(self):
        return _say_and_end, ()


def _say_and_end():
    os.write(2, b"Assertion failed\n" + b"module\n" * 500 + b"pass: LAST\n")
    os.abort()


def test_what_a_compiler_says_is_shown_in_short_where_a_gate_is_red_and_kept_whole(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    crashing = replace(LAUNCH, constexprs=(("BLOCK", _SaysWhy()),))
    (found,) = gate_run.run([((9, 0), crashing)], Settings(1))
    assert capfd.readouterr() == ("", "")
    assert found.said.count("module") == 500
    found = replace(found, launch=LAUNCH)  # which a report can name
    red, known = (Judged("3.8.0", found, verdict, found.error) for verdict in ("failed", "known"))
    gate_report.write_logs([known])
    assert not (tmp_path / "build").exists()
    gate_report.write_logs([red])
    (log,) = (tmp_path / "build").rglob("*.log")
    assert log.read_text() == found.said and log == tmp_path / red.log
    lines = gate_report.text([red], {}).splitlines()
    assert lines[2:7] == [
        "    | Assertion failed",
        "    | module",
        "    | ... 498 lines ...",
        "    | module",
        "    | pass: LAST",
    ]
    assert lines[7] == f"    | all of it: {red.log}"
    assert "Assertion" not in "\n".join(gate_report._failures([known]))


def test_what_a_compiler_says_and_fails_is_told_for_the_gate_that_it_said_it_of():
    saying = replace(LAUNCH, kernel="pointwise.no_such_function")
    child = gate_compile.Child()
    first = child.call("", _said_of, saying, b"one\n")
    second = child.call("", _said_of, saying, b"two\n")
    child.close()
    assert (first.said, second.said) == ("one\n", "two\n")


def _said_of(launch, text: bytes) -> Outcome:
    """In a child: the outcome of `launch`, whose key says `text`."""
    gate_work.gate_cache.key = lambda *gate: os.write(2, text) and 1 / 0
    return gate_work.family_outcomes([((9, 0), launch)], frozenset(), None)[0]


def test_our_own_words_are_seen(capfd):
    child = gate_compile.Child()
    child.call("", _warns)
    child.close()
    assert capfd.readouterr().err == "ours\n"


def _warns() -> None:
    print("ours", file=sys.stderr)


def test_a_few_lines_are_shown_whole():
    assert excerpt("one\n\ntwo\n") == ["one", "two"]
    assert excerpt("\n".join("abcde")) == list("abcde")
    assert excerpt("\n".join("abcdef")) == ["a", "b", "... 2 lines ...", "e", "f"]
    assert excerpt("") == []
