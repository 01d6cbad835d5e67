"""What a nightly run owes and what of it went wrong, read from its results."""

import json
import shutil

import pytest

from nvfp4_suite.ci import night
from nvfp4_suite.ci.seed_tests import SEED_TESTS

from ..report.fleet import Result, write_environment, write_junit, write_session
from .night import DUE, MATRIX, NODES, gate, make, result_of, write_gates, write_tests

NODE = "tests/moe/test_orderfree.py::test_kernel_equals_the_reference"
L40S, SECOND = "l40s-3.8.0/NVIDIA-L40S", "h200-3.8.0-2of2/NVIDIA-H200"


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
    for place, job in enumerate((L40S, SECOND)):
        two = [
            result_of(f"{NODE}[{number}]", "wrong\n3 of 240 differ", "pair") for number in (2 * place, 2 * place + 1)
        ]
        write_tests(results / job / "junit.xml", *two, result_of(f"{NODE}[{9 + place}]", "wrong", "byte"))
    write_tests(results / "interpreter" / "junit.xml", *map(result_of, NODES), result_of(f"{NODE}[2]", "wrong", "pair"))
    found = told(results)
    assert list(found) == [f"{NODE} pair", f"{NODE} byte"]  # the more widespread one first
    pair = found[f"{NODE} pair"]
    assert pair["count"] == 5 and pair["text"] == "wrong\n3 of 240 differ"
    name = NODE.partition("::")[2]
    assert sorted(pair["places"]) == [
        ["h200-3.8.0-2of2", f"{name}[2]"],
        ["h200-3.8.0-2of2", f"{name}[3]"],
        ["interpreter", f"{name}[2]"],
        ["l40s-3.8.0", f"{name}[0]"],
        ["l40s-3.8.0", f"{name}[1]"],
    ]
    assert f"nox -s gpu-tests -- '{NODE}[2]'" in pair["repro"]


def test_gates_of_one_kernel_are_one_and_repeat_themselves(results):
    repro = "nox -s compile-gates -- --launch down-w4a16_gemm-m64 --arch 120 --triton 3.8.0"
    two = [gate(f"down-w4a16_gemm-m{size}", "gemm.w4a16_gemm", repro) for size in (32, 64)]
    write_gates(results / "compile" / "gates.xml", *two)
    (found,) = told(results).values()
    assert found["what"] == "gates: gemm.w4a16_gemm" and found["count"] == 2
    assert found["repro"] == repro and found["text"] == "16 bytes spilled"


def test_digests_that_changed(results):
    one = Result("case-1/w4a16", group="golden.sm_89", failure="CHANGED: found 22", text="verify --case case-1")
    two = Result("case-2/w4a16", group="golden.sm_89", failure="CHANGED: found 33", text="verify --case case-2")
    real = Result("case-3/kernel-a/l40s", group="golden.sm_89", failure="CHANGED: found 44")
    write_junit(results / "l40s-3.8.0" / "golden.xml", [one, two, real], "golden", engine="sm_89")
    changed, other = told(results).values()
    assert other["what"] == "golden: kernel-a" and other["count"] == 1
    assert changed["what"] == "golden: w4a16" and changed["count"] == 2
    assert changed["text"] == "CHANGED: found 22" and changed["repro"] == "verify --case case-1"


def test_what_failed_a_session_without_a_test(results):
    lines = ("LOST GPU: GPU 1 GPU-5a5a: NVML has lost it", "UNTESTED: case-9 by kernel-a")
    write_session(results / L40S, "gpu", *lines)
    assert {what: one["places"] for what, one in told(results).items()} == {
        "LOST GPU": [["l40s-3.8.0", "GPU 1 GPU-5a5a: NVML has lost it"]],
        "UNTESTED": [["l40s-3.8.0", "case-9 by kernel-a"]],
    }


def test_a_job_that_fails_without_a_word(results):
    (results / "interpreter" / "status.txt").write_text("failure\n")
    (found,) = told(results).values()
    assert found["what"] == "JOB NOT GREEN" and found["places"][0][0] == "interpreter"


@pytest.mark.parametrize("job", ["l40s-3.8.0", "h200-3.8.0-1of2", "compile"])
def test_a_job_that_left_nothing(results, job):
    """It alone: what others of its runner have not run is its part."""
    shutil.rmtree(results / job)
    found = told(results)
    assert found.pop("NO RESULT")["places"] == [[job, "nothing came from this run"]]
    assert set(found) == ({"a seed's test did not run"} if job == "compile" else set())


def test_a_night_of_which_nothing_is_left(results):
    shutil.rmtree(results)
    assert {job for job, _ in told(results)["NO RESULT"]["places"]} >= {"compile", "interpreter", "l40s-3.8.0"}


def test_a_record_that_was_cut_short(results):
    path = results / L40S / "junit.xml"
    path.write_text(path.read_text()[:-20])
    assert set(told(results)) == {"DAMAGED", "NO RESULT"}


def test_what_no_shard_ran_is_untested(results):
    path = results / SECOND / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"ran": []}))
    (found,) = told(results).values()
    assert found["what"] == "UNTESTED" and found["places"] == [["h200-3.8.0", " by ".join(DUE[2])]]


@pytest.mark.parametrize("shard", [[1, 2], [2, 3], None])
def test_a_shard_that_is_another_or_came_to_no_end(results, shard):
    path = results / SECOND / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"shard": shard}))
    if shard is None:
        path.unlink()
    (found,) = told(results).values()
    assert found["what"] == "a session came to no end" and found["places"] == [["h200-3.8.0-2of2", ""]]


def test_a_test_in_two_shards(results):
    shutil.copy(results / "h200-3.8.0-1of2" / "NVIDIA-H200" / "junit.xml", results / SECOND)
    (found,) = told(results).values()
    test = "tests/moe/test_random.py::test_kernel_is_within_its_bound[h200-3.8.0-1of2]"
    assert found["what"] == "a test is in two parts of a session" and found["places"] == [["h200-3.8.0", test]]


def test_another_triton_than_was_asked_for(results):
    write_environment(results / L40S, ("NVIDIA L40S", (8, 9)), triton="3.9.0")
    (found,) = told(results).values()
    assert found["what"] == "another Triton was tested"
    assert found["places"] == [["l40s-3.8.0", "3.9.0 instead of 3.8.0"]]


def test_a_seeds_test_that_ran_nowhere(results):
    left = "tests/families/test_families.py::test_a_family_gives_the_same_bits"
    skipped = Result(left.partition("::")[2], group="tests.families.test_families", skip="no")
    others = [result_of(node) for node in NODES if node != left]
    write_tests(results / "interpreter" / "junit.xml", *others, skipped)
    found = told(results)
    assert set(found) == {"a seed's test did not run", "UNTESTED"}
    assert found["a seed's test did not run"]["places"] == [["every job", left]]


def test_a_seeds_test_that_failed_is_named_as_the_seed_names_it(results, capsys):
    failed = "tests/codec/test_two_dots.py::test_every_code_of_a_pair_is_its_value_times_2_to_the_minus_14"
    write_tests(results / L40S / "junit.xml", result_of(failed, "wrong"))
    told(results)
    name = "test_triton_prefill_dequant_reads_every_code_and_scale_exactly"
    assert f"{name}: FAILED in l40s-3.8.0; passed in interpreter" in capsys.readouterr().out


def test_long_and_strange_texts_are_cut_and_cleaned(results):
    lines = "\n".join(["\u202e\u2588wrong", *("x" * 5000 for _ in range(500))])
    write_tests(results / L40S / "junit.xml", result_of(NODE, lines))
    (found,) = told(results).values()
    assert found["text"].startswith("\ufffd\u2588wrong\nxxx") and found["text"].endswith("(461 more lines)")
    assert len(found["text"]) < 10_000


def test_the_summary_shows_the_night_as_code(results, tmp_path):
    write_session(results / L40S, "gpu", "```: <img> @all")
    summary = tmp_path / "summary"
    summary.write_text("before\n")
    night.main([str(results), "--matrix", json.dumps(MATRIX), "--summary", str(summary)])
    lines = summary.read_text().splitlines()
    assert lines[:2] == ["before", "````text"] and lines[-1] == "````"
