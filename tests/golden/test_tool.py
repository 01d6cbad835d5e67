"""The command: exit codes, what it prints and when it writes. Engines are made up; test_recording has real ones."""

import json
import xml.etree.ElementTree as xml

import pytest

from nvfp4_suite.cases.layers import ORDERFREE
from nvfp4_suite.ci import exact, golden, provenance, recording
from nvfp4_suite.ci.exact import Outcome, key
from nvfp4_suite.ci.recording import Run

REFERENCE = {"device": "x86_64", "python": "3.11.7", "torch": "2.13.0"}
GPU = REFERENCE | {"device": "NVIDIA H200", "driver": "580", "triton": "3.8.0", "assembler": "ptxas 12.9"}
CASES = ORDERFREE[:3]
KEYS = [key(case, "w4a16") for case in CASES]
DIGESTS = {name: f"{place:064x}" for place, name in enumerate(KEYS)}
SOURCES, COMMIT = "d" * 64, "c" * 40


class Engine:
    """Stands in for recording.run_in_fresh_process: gives `runs` one after the other, the last one again and again."""

    def __init__(self, *runs: dict[str, str]):
        self.runs = list(runs)
        self.calls = 0

    def __call__(self, engine, cases):
        digests = self.runs[min(self.calls, len(self.runs) - 1)]
        self.calls += 1
        name, facts = ("sm_90", GPU) if engine == "gpu" else (engine, REFERENCE)
        return Run(name, facts, {key(case, "w4a16"): Outcome(digests[key(case, "w4a16")]) for case in cases})


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A tree in which recording is allowed, with three cases and no golden file yet: where that would be."""
    golden_file = tmp_path / "golden" / "exact.json"
    golden_file.parent.mkdir()
    golden_file.with_name(exact.SCHEMA).write_bytes(golden.GOLDEN.with_name(exact.SCHEMA).read_bytes())
    monkeypatch.setattr("nvfp4_suite.cases.layers.ORDERFREE", CASES)
    monkeypatch.setattr(golden, "ROOT", tmp_path)
    monkeypatch.setattr(golden, "GOLDEN", golden_file)
    monkeypatch.setattr(provenance, "clean_commit", lambda root: COMMIT)
    monkeypatch.setattr(provenance, "sources_digest", lambda root: SOURCES)
    monkeypatch.delenv("CI", raising=False)
    return golden_file


@pytest.fixture
def engine(monkeypatch):
    """Sets what engines give from here on."""

    def use(*runs: dict[str, str]) -> Engine:
        made_up = Engine(*runs)
        monkeypatch.setattr(recording, "run_in_fresh_process", made_up)
        return made_up

    return use


def digests_in(file) -> dict[str, str]:
    return {name: entry["digest"] for name, entry in exact.read(file).items()}


def test_recording_runs_twice_writes_and_verifies(file, engine, capsys):
    made_up = engine(DIGESTS)
    assert golden.main(["record", "--engine", "reference"]) == 0
    assert made_up.calls == 2
    assert digests_in(file) == DIGESTS
    assert f"new {KEYS[0]}: {DIGESTS[KEYS[0]]}" in capsys.readouterr().out
    assert golden.main(["verify"]) == 0
    assert "3 as recorded\nconfirmed by: reference 3; unseen on hardware: 3" in capsys.readouterr().out


def test_a_second_engine_joins(file, engine, capsys):
    engine(DIGESTS)
    for name in ("reference", "gpu"):
        assert golden.main(["record", "--engine", name]) == 0
    assert all(entry["confirmed_by"] == {"reference": REFERENCE, "sm_90": GPU} for entry in exact.read(file).values())
    assert golden.main(["verify"]) == 0
    assert "confirmed by: reference 3, sm_90 3; unseen on hardware: 0" in capsys.readouterr().out


def test_an_output_that_varies_is_not_recorded(file, engine, capsys):
    engine(DIGESTS, DIGESTS | {KEYS[1]: "e" * 64})
    assert golden.main(["record", "--engine", "reference"]) == 1
    assert f"{KEYS[1]} varies" in capsys.readouterr().err
    assert not file.exists()


def test_sources_that_change_under_way_are_refused(file, engine, capsys, monkeypatch):
    engine(DIGESTS)
    hashes = iter([SOURCES, "f" * 64])
    monkeypatch.setattr(provenance, "sources_digest", lambda root: next(hashes))
    assert golden.main(["record", "--engine", "reference"]) == 1
    assert "changed while they ran" in capsys.readouterr().err
    assert not file.exists()


def test_a_changed_digest_needs_a_reason(file, engine, capsys):
    changed = DIGESTS | {KEYS[1]: "e" * 64}
    engine(DIGESTS)
    golden.main(["record", "--engine", "reference"])
    engine(changed)
    assert golden.main(["verify"]) == 1
    out = capsys.readouterr().out
    assert f"CHANGED   {KEYS[1]}\n          recorded {DIGESTS[KEYS[1]]}\n          found    {'e' * 64}" in out
    assert "2 as recorded, 1 CHANGED" in out
    assert golden.main(["record", "--engine", "reference"]) == 1
    assert "only with --reason TEXT" in capsys.readouterr().err
    assert digests_in(file) == DIGESTS
    assert golden.main(["record", "--engine", "reference", "--reason", "a rounding less"]) == 0
    assert digests_in(file) == changed
    assert exact.read(file)[KEYS[1]]["changes"][0] | {"old": ""} == {
        "old": "",
        "new": "e" * 64,
        "reason": "a rounding less",
        "commit": COMMIT,
    }


def test_findings_are_written_for_a_report(file, engine, tmp_path):
    engine(DIGESTS)
    golden.main(["record", "--engine", "reference", "--case", CASES[0].id, "--case", CASES[1].id])
    engine(DIGESTS | {KEYS[1]: "e" * 64})
    junit = tmp_path / "junit.xml"
    assert golden.main(["verify", "--engine", "gpu", "--junit", str(junit)]) == 1
    suite = xml.parse(junit).getroot()[0]
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("golden", "3", "2")
    told = {each.get("name"): each.get("value") for each in suite.find("properties")}
    assert told == GPU | {"engine": "sm_90"}
    failures = {case.get("name"): case.find("failure") for case in suite.iter("testcase")}
    assert failures[KEYS[0]] is None and failures[KEYS[2]].get("type") == "UNTESTED"
    assert failures[KEYS[1]].get("message").splitlines()[0] == f"CHANGED: {KEYS[1]}"
    assert failures[KEYS[1]].text == f"{exact.TOOL} verify --engine gpu --case {CASES[1].id}"
    assert golden.main(["verify", "--case", "nobody", "--junit", str(junit)]) == 1
    assert not junit.exists(), "what an earlier run found would pass for this one's"


def test_a_case_without_an_entry_is_untested(file, engine, capsys):
    engine(DIGESTS)
    golden.main(["record", "--engine", "reference", "--case", CASES[0].id, "--case", CASES[2].id])
    assert digests_in(file).keys() == {KEYS[0], KEYS[2]}
    assert golden.main(["verify"]) == 1
    out = capsys.readouterr().out
    assert f"UNTESTED  {KEYS[1]}\n" in out and "2 as recorded, 1 UNTESTED" in out
    assert golden.main(["verify", "--case", CASES[0].id]) == 0


def test_an_entry_without_a_case_is_stale_until_pruned(file, engine, capsys, monkeypatch):
    engine(DIGESTS)
    golden.main(["record", "--engine", "reference"])
    monkeypatch.setattr("nvfp4_suite.cases.layers.ORDERFREE", CASES[1:])
    assert golden.main(["verify"]) == 1
    assert f"STALE     {KEYS[0]}\n" in capsys.readouterr().out
    assert golden.main(["prune"]) == 0
    assert f"removed {KEYS[0]}\n" in capsys.readouterr().out
    assert golden.main(["verify"]) == 0
    assert digests_in(file).keys() == {*KEYS[1:]}


def test_a_problem_fails_verify_and_shows_its_first_line(file, engine, capsys, monkeypatch):
    engine(DIGESTS)
    golden.main(["record", "--engine", "reference"])
    failed = Run("sm_90", GPU, {KEYS[0]: Outcome(problem="first line\nsecond line")})
    monkeypatch.setattr(recording, "run_in_fresh_process", lambda engine, cases: failed)
    assert golden.main(["verify", "--engine", "gpu"]) == 1
    out = capsys.readouterr().out
    assert f"FAILED    {KEYS[0]}\n          first line\n  -> " in out
    assert "pytest --case ID --engine gpu" in out and "0 as recorded, 1 FAILED" in out


def test_a_recording_is_merged_where_the_sources_are_the_same(file, engine, tmp_path, capsys, monkeypatch):
    engine(DIGESTS)
    out = tmp_path / "recording.json"
    with monkeypatch.context() as without_git:
        without_git.setattr(provenance, "clean_commit", None)
        assert golden.main(["record", "--engine", "gpu", "--out", str(out)]) == 0
    assert not file.exists()
    assert json.loads(out.read_text()) == {
        "engine": "sm_90",
        "provenance": GPU,
        "sources": SOURCES,
        "digests": DIGESTS,
    }
    monkeypatch.setattr(provenance, "sources_digest", lambda root: "f" * 64)
    assert golden.main(["record", "--from", str(out)]) == 1
    assert f"made from the sources {SOURCES}, but this tree's are {'f' * 64}" in capsys.readouterr().err
    assert not file.exists()
    monkeypatch.setattr(provenance, "sources_digest", lambda root: SOURCES)
    assert golden.main(["record", "--from", str(out)]) == 0
    assert digests_in(file) == DIGESTS


@pytest.mark.parametrize("content", ["", "[]", '{"engine": "sm_90"}', None])
def test_what_is_no_recording_is_refused(file, tmp_path, capsys, content):
    path = tmp_path / "recording.json"
    if content is not None:
        path.write_text(content)
    assert golden.main(["record", "--from", str(path)]) == 1
    assert "should be a file that record --out wrote" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["record", "--engine", "reference"], ["record", "--from", "x"], ["prune"]])
def test_ci_and_a_dirty_tree_change_nothing(file, engine, capsys, monkeypatch, command):
    engine(DIGESTS)
    golden.main(["record", "--engine", "reference"])
    before = file.read_bytes()

    def dirty(root):
        raise exact.Refused("the tree is dirty")

    monkeypatch.setattr(provenance, "clean_commit", dirty)
    assert golden.main(command) == 1
    assert "refused: the tree is dirty" in capsys.readouterr().err
    monkeypatch.setenv("CI", "1")
    assert golden.main(command) == 1
    assert "refused: CI is set" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_ci_writes_no_recording_either(file, engine, tmp_path, monkeypatch):
    engine(DIGESTS)
    monkeypatch.setenv("CI", "1")
    assert golden.main(["record", "--engine", "reference", "--out", str(tmp_path / "out")]) == 1
    assert not (tmp_path / "out").exists()


def test_an_unknown_case_is_refused(file, engine, capsys):
    engine(DIGESTS)
    assert golden.main(["verify", "--case", "orderfree-nobody"]) == 1
    assert "--case is orderfree-nobody" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["record"],
        ["record", "--engine", "tpu"],
        ["record", "--engine", "gpu", "--from", "x"],
        ["record", "--engine", "gpu", "--out", "x", "--reason", "y"],
        ["record", "--from", "x", "--out", "y"],
        ["record", "--from", "x", "--case", "y"],
    ],
)
def test_arguments_that_do_not_go_together_are_an_error(file, arguments):
    with pytest.raises(SystemExit) as ending:
        golden.main(arguments)
    assert ending.value.code == 2
