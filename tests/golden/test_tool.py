"""The command on order-free cases: exit codes, what it prints and when it writes."""

import xml.etree.ElementTree as xml

import pytest

from nvfp4_suite.cases import layers
from nvfp4_suite.ci import exact, golden, provenance
from nvfp4_suite.ci.golden_file import Refused
from nvfp4_suite.ci.outcomes import TOOL

from ..ci.hosts import HOSTS
from .processes import GPU
from .tool import CASES, COMMIT, DIGESTS, FULL, KERNELS, KEYS, REAL, SOURCES, digests_in, recorded_in


def test_recording_runs_twice_writes_and_verifies(file, engine, capsys):
    made_up = engine(DIGESTS)
    assert golden.main(["record", "--engine", "reference"]) == 0
    assert made_up.calls == 2
    assert digests_in(file) == DIGESTS
    assert f"new {KEYS[0]}: {DIGESTS[KEYS[0]]}" in capsys.readouterr().out
    assert golden.main(["verify", "--engine", "reference"]) == 0
    assert capsys.readouterr().out == "3 as recorded\nconfirmed by: reference 3; unseen on hardware: 3\n"


def test_a_gpu_is_the_engine_where_there_is_one_else_the_reference(file, engine, host, capsys, monkeypatch):
    engine(DIGESTS)
    golden.main(["record", "--engine", "gpu"])
    host(HOSTS["one"])
    golden.main(["verify"])
    assert "sm_90, data center, Triton 3.8.0: " in capsys.readouterr().out
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    golden.main(["verify"])
    assert "sm_90, " not in capsys.readouterr().out


def test_what_an_architecture_has_no_file_of_is_not_missing_but_said(file, engine, capsys):
    engine(DIGESTS)
    golden.main(["record", "--engine", "reference"])
    assert golden.main(["verify", "--engine", "gpu"]) == 0
    assert (
        f"of {len(KERNELS)} real-valued outputs none is compared: nothing is recorded for sm_90"
        in capsys.readouterr().out
    )


def test_an_output_that_varies_is_not_recorded_but_the_others_are(file, engine, capsys):
    engine(DIGESTS, DIGESTS | {KEYS[1]: "e" * 64})
    assert golden.main(["record", "--engine", "reference"]) == 1
    assert f"{KEYS[1]} varies" in capsys.readouterr().err
    assert digests_in(file) == {KEYS[0]: DIGESTS[KEYS[0]], KEYS[2]: DIGESTS[KEYS[2]]}


def test_where_all_outputs_vary_nothing_is_written(file, engine, capsys):
    engine(DIGESTS, dict.fromkeys(KEYS, "e" * 64))
    assert golden.main(["record", "--engine", "reference"]) == 1
    assert "refused: all outputs, " in capsys.readouterr().err
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
    assert golden.main(["verify", "--engine", "reference"]) == 1
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
    assert failures[KEYS[1]].text == f"{TOOL} verify --engine gpu --case {CASES[1].id}"
    assert golden.main(["verify", "--case", "nobody", "--junit", str(junit)]) == 1
    assert not junit.exists(), "what an earlier run found would pass for this one's"


def test_a_case_without_an_entry_is_untested(file, engine, capsys):
    engine(DIGESTS)
    golden.main(["record", "--engine", "reference", "--case", CASES[0].id, "--case", CASES[2].id])
    assert digests_in(file).keys() == {KEYS[0], KEYS[2]}
    assert golden.main(["verify", "--engine", "reference"]) == 1
    out = capsys.readouterr().out
    assert f"UNTESTED  {KEYS[1]}\n" in out and "2 as recorded, 1 UNTESTED" in out
    assert golden.main(["verify", "--engine", "reference", "--case", CASES[0].id]) == 0


def test_an_entry_without_a_case_is_stale_until_pruned(file, engine, capsys, monkeypatch):
    engine(DIGESTS)
    golden.main(["record", "--engine", "gpu"])
    monkeypatch.setattr(layers, "ORDERFREE", CASES[1:])
    monkeypatch.setattr(layers, "RANDOM", ())
    monkeypatch.setattr(layers, "ALL", CASES[1:])
    assert golden.main(["verify", "--engine", "reference"]) == 1
    out = capsys.readouterr().out
    assert f"STALE     {KEYS[0]}\n" in out and f"STALE     {FULL}\n" in out
    assert golden.main(["prune"]) == 0
    out = capsys.readouterr().out
    assert f"removed {KEYS[0]}\n" in out and f"removed {FULL}\n" in out
    assert golden.main(["verify", "--engine", "reference"]) == 0
    assert digests_in(file).keys() == {*KEYS[1:]} and recorded_in(file) == ({}, [])


def test_a_recording_that_somebody_edited_is_refused(file, engine, tmp_path, capsys):
    engine(DIGESTS)
    out = tmp_path / "recording.json"
    golden.main(["record", "--engine", "gpu", "--out", str(out)])
    out.write_text(out.read_text().replace("e" * 64, "f" * 64, 1))
    assert golden.main(["record", "--from", str(out)]) == 1
    assert "does not have its check, so somebody edited it" in capsys.readouterr().err
    assert not file.exists()


@pytest.mark.parametrize("content", ["", "[]", '{"engine": "sm_90"}', None])
def test_what_is_no_recording_is_refused(file, tmp_path, capsys, content):
    path = tmp_path / "recording.json"
    if content is not None:
        path.write_text(content)
    assert golden.main(["record", "--from", str(path)]) == 1
    assert "recording.json should be a file " in capsys.readouterr().err


@pytest.mark.parametrize("command", [["record", "--engine", "reference"], ["record", "--from", "x"], ["prune"]])
def test_ci_and_a_dirty_tree_change_nothing(file, engine, capsys, monkeypatch, command):
    engine(DIGESTS)
    golden.main(["record", "--engine", "reference"])
    before = file.read_bytes()

    def dirty(root):
        raise Refused("the tree is dirty")

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


def test_a_case_that_an_engine_owes_nothing_of_cannot_be_recorded(file, engine, capsys):
    engine(DIGESTS)
    assert golden.main(["record", "--engine", "reference", "--case", REAL[0].id]) == 1
    assert golden.main(["verify", "--engine", "reference", "--case", REAL[0].id]) == 1
    assert capsys.readouterr().err.count("reference owes no digest of these cases") == 2
    assert not file.exists()
