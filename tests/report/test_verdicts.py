"""The line of a run: red wherever something did not happen, and never better known than it is."""

import pytest

from nvfp4_suite.ci.report import reading, verdicts
from nvfp4_suite.ci.report.verdicts import Verdict

from . import fleet
from .fleet import H200, Result, failing

PASSED = [Result("test_one"), Result("test_two")]


@pytest.fixture
def verdict(tmp_path):
    """The verdict on the only run of the folder that a test fills."""

    def verdict() -> Verdict:
        (run,) = reading.read([tmp_path]).runs
        return verdicts.of(run)

    return verdict


def test_what_ran_on_a_gpu_says_so(tmp_path, verdict):
    fleet.write_session_of(tmp_path / "run", PASSED, H200, H200)
    found = verdict()
    assert (found.red, found.word, found.passed, found.green) == (False, "ran", 2, True)
    assert found.line == "2 x NVIDIA H200 (sm_90) · Triton 3.8.0 · torch 2.11.0+cu130 · ptxas 12.9 · " + (
        "driver 580.65.06 · commit 2b238f9f3800"
    )


@pytest.mark.parametrize(
    ("engine", "word"),
    [("interpreter", "emulated"), ("compile", "compiled"), ("peers", "compared"), ("another", "unknown")],
)
def test_no_other_engine_ran(tmp_path, verdict, engine, word):
    """Also where a GPU is in the host."""
    fleet.write_environment(tmp_path / "run", H200)
    fleet.write_session(tmp_path / "run", engine)
    fleet.write_junit(tmp_path / "run" / "junit.xml", PASSED)
    assert (verdict().red, verdict().word) == (False, word)


def test_without_a_record_of_the_session_its_gpus_say_what_ran(tmp_path, verdict):
    fleet.write_junit(tmp_path / "run" / "junit.xml", PASSED)
    assert verdict().word == "unknown in part"
    fleet.write_environment(tmp_path / "run")
    assert verdict().word == "emulated in part"
    fleet.write_environment(tmp_path / "run", H200)
    assert (verdict().word, verdict().green) == ("ran in part", False), "nobody says that all that was due has run"


def test_tests_chosen_by_hand_may_be_skipped_but_pass_for_nothing(tmp_path, verdict):
    fleet.write_session_of(tmp_path / "run", [Result("test_one", skip="no tool")], H200, whole=False)
    assert (verdict().red, verdict().word, verdict().green) == (False, "nothing passed", False)


def test_a_shard_is_a_part(tmp_path, verdict):
    fleet.write_session_of(tmp_path / "run", PASSED, H200)
    fleet.write_json(tmp_path / "run" / "manifest.json", {"shard": [1, 1], "due": [], "ran": []})
    assert verdict().word == "ran"
    fleet.write_json(tmp_path / "run" / "manifest.json", {"shard": [2, 2], "due": [], "ran": []})
    assert (verdict().word, verdict().green) == ("ran in part", False)


@pytest.mark.parametrize("more", [{"whole": False}, {"tier": "smoke"}])
def test_a_part_is_called_a_part(tmp_path, verdict, more):
    fleet.write_session_of(tmp_path / "run", PASSED, H200, **more)
    assert verdict().word == "ran in part"


@pytest.mark.parametrize(
    ("engine", "word"), [("sm_90", "ran"), ("interpreter", "emulated"), ("reference", "computed"), ("x", "unknown")]
)
def test_digests_are_known_by_their_engine(tmp_path, verdict, engine, word):
    fleet.write_junit(tmp_path / "run" / "golden.xml", PASSED, "golden", engine=engine)
    assert verdict().word == word


def test_gates_were_compiled_and_measurements_timed(tmp_path):
    fleet.write_junit(tmp_path / "a" / "gates.xml", fleet.gate_results((9, 0)), "compile-gates")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "bench.jsonl").write_text(fleet.json.dumps(fleet.ROW))
    gates, bench = map(verdicts.of, reading.read([tmp_path]).runs)
    assert (gates.word, gates.line) == ("compiled", "sm_90 · Triton 3.8.0 · ptxas 12.9")
    assert (bench.word, bench.line, bench.red) == ("timed", "NVIDIA H200 · Triton 3.8.0", False)


def skipped(folder):
    fleet.write_environment(folder, H200)
    fleet.write_junit(folder / "junit.xml", [*PASSED, Result("test_three", skip="no tool")])


def damaged(folder):
    fleet.write_session_of(folder, PASSED, H200)
    (folder / "environment.json").write_text("{")


def only_a_bundle(folder):
    fleet.write_session_of(folder, PASSED, H200)
    fleet.write_bundle(folder, failing(), None)


def sanitized(folder):
    fleet.write_session_of(folder, PASSED, H200)
    fleet.write_json(folder / "sanitizer.json", {"tool": "memcheck", "problems": ["UNTESTED: memcheck: not there"]})


OWED = ("UNTESTED: a by b", "UNTESTED: 7 more of the 9 cases by kernel that are due on this GPU")
RED = {
    "a test failed": (lambda run: fleet.write_session_of(run, [*PASSED, failing()], H200), "failed", 0, ""),
    "the session died": (
        lambda run: fleet.write_environment(run, H200),
        "no result",
        0,
        "NO RESULT: there is no JUnit",
    ),
    "no test ran": (lambda run: fleet.write_session_of(run, [], H200), "failed", 0, "NO RESULT: no test ran"),
    "a case is owed": (lambda run: fleet.write_session_of(run, PASSED, H200, problems=OWED), "untested", 8, OWED[1]),
    "a GPU was lost": (
        lambda run: fleet.write_session_of(run, PASSED, H200, problems=("LOST GPU",)),
        "failed",
        0,
        "LOST",
    ),
    "it failed silently": (lambda run: fleet.write_session_of(run, PASSED, H200, exit=3), "failed", 0, "EXIT CODE 3"),
    "a test was skipped": (skipped, "untested", 1, "UNTESTED: 1 test was skipped"),
    "a file is damaged": (damaged, "failed", 0, "DAMAGED: environment.json: "),
    "a bundle is left": (only_a_bundle, "failed", 0, ""),
    "a tool was missing": (sanitized, "untested", 1, "UNTESTED: memcheck: not there"),
    "there is nothing": (lambda run: run.mkdir(), "no result", 0, "NO RESULT: nothing came from this run"),
}


@pytest.mark.parametrize(("write", "word", "untested", "problem"), RED.values(), ids=RED)
def test_whatever_did_not_happen_is_red(tmp_path, verdict, write, word, untested, problem):
    write(tmp_path / "run")
    found = verdict()
    assert (found.red, found.word, found.untested) == (True, word, untested)
    assert any(line.startswith(problem) for line in found.problems) if problem else not found.problems
