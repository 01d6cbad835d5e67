"""What is red, each once, with the judge's words, the commands that repeat it and all that was written of it."""

import pytest

from nvfp4_suite.ci.report.failures import Failure
from nvfp4_suite.ci.report.text import count, cut, first_line, printable

from . import fleet, shown
from .fleet import H200, RTX_5090, Result, failing


def only(root) -> Failure:
    (failure,) = shown.made(root).failures
    return failure


def test_a_failure_has_the_whole_explanation_although_junit_cuts_the_message(tmp_path):
    fleet.write_session_of(tmp_path / "run", [failing()], H200, exit=1)
    fleet.write_bundle(tmp_path / "run", failing(), fleet.wrong_tile())
    failure = only(tmp_path)
    (one,) = failure.occurrences
    assert one.explanation == fleet.JUDGED
    assert one.headline == "the output differs from the expected bits in 1188 of 8976 elements"
    assert one.text.startswith("def test()") and one.cells.total == 1024
    assert (failure.kind, failure.key) == ("tests", (fleet.TEST, fleet.named("prefill_w4a16")))
    case, replay = one.repro
    assert case == f"nox -s gpu-tests -- --case {fleet.CASE}"
    assert replay.startswith("python -m nvfp4_suite replay ") and (tmp_path / "run" / "failures").as_posix() in replay


def test_of_chained_errors_the_last_one_is_told(tmp_path):
    text = (
        "E   KeyError: 'a'\n\nDuring handling ...\n>   raise\nE   ValueError: the second\nE     and its second line\n"
    )
    fleet.write_session_of(tmp_path / "run", [Result("test_one", failure="ValueError: cut", text=text)], H200, exit=1)
    assert only(tmp_path).occurrences[0].explanation == "ValueError: the second\n  and its second line"


def test_without_a_traceback_the_message_is_told(tmp_path):
    results = [Result("test_one", failure="worker 'gw1' crashed"), Result("test_two", failure="")]
    fleet.write_session_of(tmp_path / "run", results, H200, exit=1)
    crashed, silent = shown.made(tmp_path).failures
    assert crashed.occurrences[0].explanation == "worker 'gw1' crashed"
    assert silent.occurrences[0].headline == "nothing was said of it"


@pytest.mark.parametrize(
    ("engine", "session"),
    [("gpu", "gpu-tests"), ("interpreter", "tests"), ("compile", "gate-tests"), ("peers", "peers")],
)
def test_a_test_without_a_case_is_repeated_by_its_name_in_its_session(tmp_path, engine, session):
    fleet.write_environment(tmp_path / "run", H200)
    fleet.write_session(tmp_path / "run", engine, exit=1)
    fleet.write_junit(
        tmp_path / "run" / "junit.xml", [Result("test_it[a 'b'-1]", failure="no", group="tests.a.test_b")]
    )
    quoted = "'tests/a/test_b.py::test_it[a '\"'\"'b'\"'\"'-1]'"
    assert only(tmp_path).occurrences[0].repro == (f"nox -s {session} -- {quoted}",)


def test_one_failure_in_several_runs_is_one(tmp_path):
    elsewhere = fleet.JUDGED.replace("NVIDIA H200", "NVIDIA GeForce RTX 5090")
    otherwise = fleet.JUDGED.replace("1188", "7")
    fleet.write_session_of(tmp_path / "a", [failing()], H200, exit=1)
    fleet.write_session_of(tmp_path / "b", [failing(said=elsewhere)], RTX_5090, exit=1)
    fleet.write_session_of(tmp_path / "c", [failing(said=otherwise)], exit=1)
    failure = only(tmp_path)
    assert [one.run for one in failure.occurrences] == ["a", "b", "c"]
    assert [one.run for one in failure.others] == ["c"], "b says what a says, but for where it ran"


def test_a_gate_that_is_red_on_several_architectures_is_one_failure(tmp_path):
    gated = fleet.gate_results((12, 0), (12, 1), red="w4a4_down_specialized-fp8e4nv-bf16-weighted-m16")
    fleet.write_junit(tmp_path / "run" / "gates.xml", gated, "compile-gates")
    failure = only(tmp_path)
    assert [one.where for one in failure.occurrences] == ["sm_120, Triton 3.8.0", "sm_121, Triton 3.8.0"]
    assert "spilled registers" in failure.occurrences[0].explanation
    assert failure.occurrences[1].repro[0].endswith("--arch sm_121 --triton 3.8.0")
    assert failure.family == "w4a4_gluon.w4a4_down_specialized"


def test_a_digest_that_changed_has_its_command(tmp_path):
    command = f"python -m nvfp4_suite.ci.golden verify --engine gpu --case {fleet.CASE}"
    changed = Result(f"{fleet.CASE}/w4a16", failure="CHANGED: it\nfound e", text=command, group="golden.sm_90")
    fleet.write_junit(tmp_path / "run" / "golden.xml", [changed], "golden", engine="sm_90", device="NVIDIA H200")
    failure = only(tmp_path)
    assert (failure.kind, failure.occurrences[0].where) == ("golden", "NVIDIA H200 (sm_90)")
    assert failure.occurrences[0].repro == (command,) and failure.occurrences[0].explanation == "CHANGED: it\nfound e"


def test_a_bundle_is_told_although_junit_was_lost(tmp_path):
    fleet.write_environment(tmp_path / "run", H200)
    told = failing()
    told.failure = told.text  # a bundle keeps pytest's text
    fleet.write_bundle(tmp_path / "run", told, fleet.wrong_tile())
    session, failure = shown.made(tmp_path).failures
    assert session.kind == "session" and "no JUnit file" in session.occurrences[0].explanation
    assert failure.occurrences[0].explanation == fleet.JUDGED and failure.occurrences[0].cells


def test_sessions_come_first_and_gates_last(tmp_path):
    fleet.write(tmp_path)
    kinds = [one.kind for one in shown.made(tmp_path).failures]
    assert kinds == sorted(kinds, key=["session", "tests", "golden", "gates"].index) and len(set(kinds)) == 3


def test_what_was_not_red_before_is_new_and_comes_first(tmp_path):
    """A run that is red by itself is known by its name, a test in whatever run."""
    yesterday, today = tmp_path / "yesterday", tmp_path / "today"
    old, new = failing(), failing(case="another")
    fleet.write_session_of(yesterday / "a", [old], H200, exit=1)
    fleet.write_environment(yesterday / "b", H200)
    fleet.write_session_of(today / "c", [old, new], exit=1)
    for name in ("b", "d"):
        fleet.write_environment(today / name, H200)
    report = shown.made(today, before=yesterday)
    told = [(one.title, one.new) for one in report.failures]
    assert told == [("d", True), ("b", False), (fleet.named("prefill_w4a16", "another"), True), (old.name, False)]
    assert report.headline == "3 of 3 runs are red: 2 distinct failures (1 new)"
    assert {one.new for one in shown.made(today).failures} == {None}


def test_texts_are_made_fit_to_be_shown():
    assert printable("a\x1b[31mred\x1b[0m#x1B[1mbold\r\n\tb") == "aredbold\n    b"
    assert printable("a\x00b\u202ec\u200bd\ud800e") == "a\ufffdb\ufffdc\ufffdd\ufffde"
    assert printable("größer \N{SNOWMAN} 数") == "größer \N{SNOWMAN} 数"
    assert cut("1\n2\n3\n4", 2) == "1\n2\n... (2 more lines)" and cut("\n1\n", 2) == "1"
    assert cut("x" * 10, 1, 4) == "xxxx ... (6 more)"
    assert first_line("\n \n  it is wrong  \nmore") == "it is wrong" and first_line("") == ""
    assert (count(1, "run"), count(2000, "run"), count(0, "is", "are")) == ("1 run", "2,000 runs", "0 are")
