"""What a nightly run owes and what of it went wrong, read from its results."""

import json
import shutil

import pytest

from nvfp4_suite.ci import night
from nvfp4_suite.ci.seed_tests import SEED_TESTS

from .night import DUE, MATRIX, NODES, case, failure, make, record

NODE = "tests/moe/test_orderfree.py::test_kernel_equals_the_reference"
L40S = "l40s-3.8.0/NVIDIA-L40S"


@pytest.fixture
def results(tmp_path):
    return make(tmp_path / "artifacts")


def told(results) -> dict[str, dict]:
    """The night's distinct failures by what failed."""
    file = results.parent / "night.json"
    code = night.main([str(results), "--matrix", json.dumps(MATRIX), "--json", str(file)])
    found = json.loads(file.read_text())
    assert code == (1 if found else 0)
    return {one["what"]: one for one in found}


def test_a_green_night(results, capsys):
    assert told(results) == {}
    out = capsys.readouterr().out
    assert out.startswith("nothing failed\n")
    for name in SEED_TESTS:
        assert f"  {name}: passed in " in out


def test_failures_of_one_function_by_one_kernel_are_one(results):
    for job in (L40S, "h200-3.8.0-2of2/NVIDIA-H200"):
        cases = [case(f"{NODE}[{number}]", failure("wrong", "3 of 240 differ", "pair")) for number in "12"]
        record(results / job / "junit.xml", *cases, case(f"{NODE}[3]", failure("wrong", kernel="byte")))
    found = told(results)
    assert list(found) == [f"{NODE} by pair", f"{NODE} by byte"]  # the more widespread one first
    pair = found[f"{NODE} by pair"]
    assert pair["count"] == 4 and pair["text"] == "wrong\n3 of 240 differ"
    assert sorted(pair["places"]) == [
        ["h200-3.8.0-2of2", f"{NODE}[1]"],
        ["h200-3.8.0-2of2", f"{NODE}[2]"],
        ["l40s-3.8.0", f"{NODE}[1]"],
        ["l40s-3.8.0", f"{NODE}[2]"],
    ]
    assert pair["repro"] == f"nox -s gpu-tests -- '{NODE}[1]'"


def test_a_crash_is_a_failure_and_an_expected_one_is_none(results):
    crash = "<error message='failed on setup with a crash'>gw1</error>"
    record(results / L40S / "junit.xml", case(f"{NODE}[1]", crash), case(f"{NODE}[2]", "<skipped type='xfail' />"))
    assert {what: one["count"] for what, one in told(results).items()} == {NODE: 1}


def test_gates_of_one_kernel_are_one_and_repeat_themselves(results):
    repro = "nox -s compile-gates -- --launch down-w4a16_gemm-m64 --arch 120 --triton 3.8.0"
    group = "compile-gates.triton-3.8.0.sm_120"
    cases = [case(f"{group}::down-w4a16_gemm-m{size}", failure("16 bytes spilled", repro)) for size in (32, 64)]
    record(results / "compile" / "gates.xml", *cases)
    found = told(results)
    assert list(found) == ["compile-gates: down w4a16_gemm"]
    assert found["compile-gates: down w4a16_gemm"]["repro"] == repro


def test_digests_that_changed(results):
    text = "nox -s golden -- verify --engine gpu --case case-1"
    cases = [case(f"golden.sm_89::case-{number}/w4a16", failure("CHANGED: found 22", text)) for number in "12"]
    record(results / "l40s-3.8.0" / "golden.xml", *cases)
    (changed,) = told(results).values()
    assert changed["what"] == "golden: w4a16" and changed["count"] == 2
    assert changed["text"].startswith("CHANGED: found 22") and changed["repro"] == text


def test_what_failed_a_session_without_a_test(results):
    lines = ["LOST GPU: GPU 1 GPU-5a5a: NVML has lost it", "UNTESTED: case-9 by kernel-a"]
    (results / L40S / "session.json").write_text(json.dumps({"problems": lines}))
    found = told(results)
    assert {what: one["places"] for what, one in found.items()} == {
        "LOST GPU": [["l40s-3.8.0", "GPU 1 GPU-5a5a: NVML has lost it"]],
        "UNTESTED": [["l40s-3.8.0", "case-9 by kernel-a"]],
    }


def test_a_job_that_fails_without_a_word(results):
    (results / "interpreter" / "status.txt").write_text("failure\n")
    (found,) = told(results).values()
    assert found["what"] == "a job fails without a failed test" and found["places"] == [["interpreter", "failure"]]


@pytest.mark.parametrize("job", ["l40s-3.8.0", "h200-3.8.0-1of2", "compile"])
def test_a_job_that_left_nothing(results, job):
    """It alone: what others of its runner have not run is its part."""
    shutil.rmtree(results / job)
    found = told(results)
    assert found.pop("a job left no results")["places"] == [[job, ""]]
    assert set(found) <= ({"a seed's test did not run"} if job == "compile" else set())


def test_a_record_that_was_cut_short(results):
    path = results / L40S / "junit.xml"
    path.write_text(path.read_text()[:-20])
    assert list(told(results)) == ["results that cannot be read"]


def test_what_no_shard_ran_is_untested(results):
    path = results / "h200-3.8.0-2of2" / "NVIDIA-H200" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"ran": []}))
    (found,) = told(results).values()
    assert found["what"] == "UNTESTED by kernel-a" and found["places"] == [["h200-3.8.0", DUE[2][0]]]


@pytest.mark.parametrize("shard", [[1, 2], [2, 3], None])
def test_a_shard_that_is_another_or_came_to_no_end(results, shard):
    path = results / "h200-3.8.0-2of2" / "NVIDIA-H200" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"shard": shard}))
    if shard is None:
        path.unlink()
    (found,) = told(results).values()
    assert found["what"] == "a session came to no end" and found["places"] == [["h200-3.8.0-2of2", ""]]


def test_another_triton_than_was_asked_for(results):
    (results / L40S / "environment.json").write_text(json.dumps({"triton": "3.9.0"}))
    (found,) = told(results).values()
    assert found["what"] == "another Triton was tested"
    assert found["places"] == [["l40s-3.8.0", "3.9.0 instead of 3.8.0"]]


def test_a_seeds_test_that_ran_nowhere(results, capsys):
    left = "tests/families/test_families.py::test_a_family_gives_the_same_bits"
    record(results / "interpreter" / "tests.xml", *(case(node) for node in NODES if node != left))
    (found,) = told(results).values()
    assert found["what"] == "a seed's test did not run" and found["places"] == [["every job", left]]


def test_a_seeds_test_that_failed_is_named_as_the_seed_names_it(results, capsys):
    failed = "tests/codec/test_two_dots.py::test_every_code_of_a_pair_is_its_value_times_2_to_the_minus_14"
    record(results / L40S / "junit.xml", case(failed, failure("wrong")))
    told(results)
    name = "test_triton_prefill_dequant_reads_every_code_and_scale_exactly"
    assert f"{name}: FAILED in l40s-3.8.0; passed in interpreter" in capsys.readouterr().out


def test_long_and_strange_texts_are_cut_and_cleaned(results):
    record(results / L40S / "junit.xml", case(NODE, failure("\u202e\u2588wrong", "x" * 5000)))
    (found,) = told(results).values()
    assert found["text"].startswith("?\u2588wrong\nxxx") and found["text"].endswith("characters more")
    assert len(found["text"]) < 3100


def test_the_summary_shows_the_night_as_code(results, tmp_path):
    (results / L40S / "session.json").write_text(json.dumps({"problems": ["```: <img> @all"]}))
    summary = tmp_path / "summary"
    summary.write_text("before\n")
    night.main([str(results), "--matrix", json.dumps(MATRIX), "--summary", str(summary)])
    lines = summary.read_text().splitlines()
    assert lines[:2] == ["before", "````text"] and lines[-1] == "````"
