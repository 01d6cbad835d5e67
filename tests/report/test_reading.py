"""What becomes of folders: runs, and nothing that is dropped, however damaged."""

import pytest

from nvfp4_suite.ci.report import junit, reading

from . import fleet
from .fleet import H200, Result


@pytest.fixture
def read(tmp_path):
    """Reads the folder that a test fills; the runs by name."""

    def read(*expected: str) -> dict[str, reading.Run]:
        return {run.name: run for run in reading.read([tmp_path], list(expected)).runs}

    return read


def test_a_night_is_read_as_it_was_left(tmp_path):
    found = reading.read([fleet.write(tmp_path)])
    assert [(run.name, run.kind) for run in found.runs] == [
        ("cpu-3.8.0", "tests"),
        ("gates", "nothing"),  # its damaged file
        ("gates: compile-gates", "gates"),
        ("h200-3.8.0", "bench"),
        ("h200-3.8.0/NVIDIA-H200", "tests"),
        ("h200-3.8.0: golden", "golden"),
        ("l40s-3.9.0/NVIDIA-L40S", "tests"),
        ("rtx5090-3.8.0/NVIDIA-GeForce-RTX-5090", "tests"),
    ]
    assert (found.attached, found.unknown) == (["gates/summary.md"], ["gates/core.1234"])
    h200 = next(run for run in found.runs if run.name.endswith("NVIDIA-H200"))
    assert len(h200.suite.results) == 86 and h200.environment.gpus[0] == ("NVIDIA H200", "sm_90")
    assert (h200.bundles[0].group, h200.bundles[0].name) == (fleet.TEST, fleet.named("prefill_w4a16"))


def test_a_run_that_is_the_root_itself_has_the_name_of_its_folder(tmp_path):
    fleet.write_session_of(tmp_path / "NVIDIA-H200", [Result("test_one")], H200)
    (tmp_path / "NVIDIA-H200" / "logs").mkdir()
    assert [run.name for run in reading.read([tmp_path / "NVIDIA-H200"]).runs] == ["NVIDIA-H200"]


def test_several_roots_are_named_from_what_they_have_in_common(tmp_path):
    for name in ("one", "two"):
        fleet.write_session_of(tmp_path / name / "GPU", [Result("test_one")], H200)
    (tmp_path / "three").mkdir()
    found = reading.read([tmp_path / "two", tmp_path / "one", tmp_path / "three"])
    assert [(run.name, run.kind) for run in found.runs] == [
        ("one/GPU", "tests"),
        ("three", "nothing"),
        ("two/GPU", "tests"),
    ]


def test_what_left_nothing_is_a_run_without_a_result(tmp_path, read):
    fleet.write_session_of(tmp_path / "h200-3.8.0" / "NVIDIA-H200", [Result("test_one")], H200)
    (tmp_path / "b200-3.8.0").mkdir()
    assert {name: run.kind for name, run in read("h200-3.8.0", "gb10-3.9.0", "h200").items()} == {
        "b200-3.8.0": "nothing",
        "gb10-3.9.0": "nothing",
        "h200": "nothing",
        "h200-3.8.0/NVIDIA-H200": "tests",
    }


def test_a_root_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="nowhere should be a folder of runs"):
        reading.read([tmp_path / "nowhere"])


GOOD = "<testsuites><testsuite name='pytest'><testcase name='a'/></testsuite></testsuites>"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (GOOD[:-20], "no XML, or cut short: "),
        ("", "no XML, or cut short: no element found"),
        ("\x00\x01", "no XML, or cut short: "),
        ("<html></html>", "the root is <html>, but should be <testsuites>"),
        ("<testsuites/>", "there is no <testsuite> in it"),
    ],
)
def test_damaged_junit_is_said_with_its_reason(tmp_path, read, content, why):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "junit.xml").write_text(content)
    ((file, found),) = read()["run"].damaged
    assert file == "junit.xml" and found.startswith(why)
    (tmp_path / "run" / "junit.xml").write_text(GOOD)
    assert read()["run"].damaged == []


ENVIRONMENT = {"gpus": [{"name": "H200", "capability": [9, 0]}], "triton": "3.8.0"}
SESSION = {"engine": "gpu", "tier": "all", "whole": True, "exit": 0, "problems": []}
BUNDLE = {"test": "tests/a.py::test_b", "kernel": None, "failure": "no", "wrong": None}


@pytest.mark.parametrize(
    ("file", "good", "bad", "why"),
    [
        ("environment.json", ENVIRONMENT, [], "it is a list, but should be an object"),
        ("environment.json", ENVIRONMENT, {}, "gpus is missing, but should be a list"),
        (
            "environment.json",
            ENVIRONMENT,
            ENVIRONMENT | {"gpus": ["H200"]},
            "gpus holds 'H200', but should hold objects",
        ),
        (
            "environment.json",
            ENVIRONMENT,
            {"gpus": [{"name": "x", "capability": [9]}]},
            "capability is [9], but should",
        ),
        ("environment.json", ENVIRONMENT, ENVIRONMENT | {"triton": 3.8}, "triton is 3.8, but should be a str"),
        ("session.json", SESSION, SESSION | {"whole": "yes"}, "whole is 'yes', but should be a bool"),
        ("session.json", SESSION, SESSION | {"problems": [1]}, "problems should hold texts only"),
        (
            "sanitizer.json",
            {"tool": "memcheck", "problems": []},
            {"tool": "x"},
            "problems is missing, but should be a list",
        ),
        ("manifest.json", {"shard": [1, 2]}, {"shard": [1]}, "shard is [1], but should be two numbers"),
        ("failures/a/bundle.json", BUNDLE, BUNDLE | {"failure": 3}, "failure is 3, but should be a text"),
        ("failures/a/bundle.json", BUNDLE, BUNDLE | {"wrong": {"shape": [1, 1]}}, "wrong should have shape, cell and"),
    ],
)
def test_damaged_records_are_said_with_their_reasons(tmp_path, read, file, good, bad, why):
    fleet.write_json(tmp_path / "run" / file, bad)
    ((name, found),) = read()["run"].damaged
    assert name == file.removesuffix("/bundle.json") and why in found
    fleet.write_json(tmp_path / "run" / file, good)
    assert read()["run"].damaged == []


def test_a_bundle_without_its_record_is_damaged(tmp_path, read):
    (tmp_path / "run" / "failures" / "one").mkdir(parents=True)
    assert read()["run"].damaged == [("failures/one", "a bundle should have a bundle.json")]


def test_measurements_are_read_line_by_line(tmp_path, read):
    lines = [fleet.ROW, fleet.ROW | {"ratio": None, "more": 1}, fleet.ROW | {"tokens": True}, fleet.ROW | {"ratio": -1}]
    fleet.write_json(tmp_path / "run" / "bench.jsonl", {})
    text = "\n".join([*map(fleet.json.dumps, lines), "", "{", "[1]", '{"kernel": "a"}'])
    (tmp_path / "run" / "bench.jsonl").write_text(text)
    run = read()["run"]
    assert [(row.tokens, row.ratio) for row in run.rows] == [(4096, 1.02), (4096, None)]
    assert [file for file, _ in run.damaged] == [f"bench.jsonl, line {number}" for number in (3, 4, 6, 7, 8)]
    told = [why for _, why in run.damaged]
    assert told[0] == "tokens is True, but should be a number above 0"
    assert told[1] == "ratio is -1, but should be a number above 0"
    assert told[3:] == ["it is a list, but should be an object", "gpu is None, but should be a text"]


def test_every_outcome_of_junit_is_told_apart(tmp_path):
    (tmp_path / "junit.xml").write_text(
        """<testsuite name="pytest"><properties><property name="p" value="v"/></properties>
        <testcase classname="c" name="passed" time="1.5">
        <properties><property name="kernel" value="k"/></properties></testcase>
        <testcase name="failed"><failure message="m">t</failure></testcase>
        <testcase name="both" time="x"><failure message="m">t</failure><error message="e"/></testcase>
        <testcase name="skipped"><skipped type="pytest.skip" message="no tool"/></testcase>
        <testcase name="known"><skipped type="pytest.xfail" message="k"/></testcase>
        <testcase name="gate"><skipped type="expected" message="k"/></testcase></testsuite>"""
    )
    suite = junit.read(tmp_path / "junit.xml")
    assert {one.name: one.outcome for one in suite.results} == {
        "passed": "passed",
        "failed": "failed",
        "both": "failed",
        "skipped": "skipped",
        "known": "known",
        "gate": "known",
    }
    assert (suite.name, suite.properties, suite.seconds) == ("pytest", {"p": "v"}, 1.5)
    assert suite.results[0].properties == {"kernel": "k"} and suite.results[2].message == "m\ne"
