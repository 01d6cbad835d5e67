"""The command on real-valued cases of a GPU, and what it refuses of recordings."""

import json

import pytest

from nvfp4_suite.ci import exact, golden, golden_work, provenance, recorded, recording_file
from nvfp4_suite.ci.golden_due import Task
from nvfp4_suite.ci.golden_work import Run
from nvfp4_suite.ci.outcomes import Outcome, Recording
from nvfp4_suite.ci.recording import Engine

from .processes import CPU as REFERENCE
from .processes import GPU
from .tool import (
    CASES,
    COMMIT,
    DIGESTS,
    FULL,
    KERNELS,
    KEYS,
    NAME,
    PLAN,
    REAL,
    SOURCES,
    Runs,
    digests_in,
    name_of,
    recorded_in,
)


def test_a_gpu_joins_and_real_valued_digests_are_recorded(file, engine, capsys):
    engine(DIGESTS)
    for name in ("reference", "gpu"):
        assert golden.main(["record", "--engine", name]) == 0
    confirmed = {"reference": REFERENCE, "sm_90 triton 3.8.0": GPU}
    assert all(entry["confirmed_by"] == confirmed for entry in exact.read(file).values())
    entries, changes = recorded_in(file)
    assert entries[NAME] == GPU | {"digest": "e" * 64, "plan": PLAN} and changes == []
    assert len(entries) == len(KERNELS)
    out = capsys.readouterr().out
    assert f"new {FULL}: {'e' * 64}\n  beside {REAL[0].id}/" in out and "the same digest; nothing else differs" in out
    assert golden.main(["verify", "--engine", "gpu"]) == 0
    assert capsys.readouterr().out == (
        "3 as recorded\nconfirmed by: reference 3, sm_90 triton 3.8.0 3; unseen on hardware: 0\n"
        f"sm_90, data center, Triton 3.8.0: {len(KERNELS)} as recorded\n"
    )


def test_a_changed_real_valued_digest_needs_a_reason_which_is_kept(file, engine, capsys):
    engine(DIGESTS)
    golden.main(["record", "--engine", "gpu"])
    wider = PLAN.replace("=16", "=32")
    engine(DIGESTS, real="f" * 64, plan=wider)
    capsys.readouterr()
    assert golden.main(["verify", "--engine", "gpu"]) == 1
    out = capsys.readouterr().out
    assert f"CHANGED   {FULL}\n          recorded {'e' * 64}\n          found    {'f' * 64}" in out
    assert f"Triton 3.8.0: 0 as recorded, {len(KERNELS)} CHANGED" in out
    before = recorded_in(file)
    assert golden.main(["record", "--engine", "gpu"]) == 1
    err = capsys.readouterr().err
    assert f"{NAME}: sm_90 gives {'f' * 64},\n  but recorded is {'e' * 64}; BLOCK_M 16 -> 32\n" in err
    assert recorded_in(file) == before
    assert golden.main(["record", "--engine", "gpu", "--reason", "blocks of 32"]) == 0
    entries, changes = recorded_in(file)
    assert entries[NAME]["digest"] == "f" * 64 and len(changes) == len(KERNELS)
    assert [change for change in changes if change["key"] == NAME] == [
        {
            "commit": COMMIT,
            "difference": "BLOCK_M 16 -> 32",
            "key": NAME,
            "new": "f" * 64,
            "old": "e" * 64,
            "reason": "blocks of 32",
        }
    ]


def test_another_plan_with_the_same_digest_is_told_and_is_no_failure(file, engine, capsys):
    engine(DIGESTS)
    golden.main(["record", "--engine", "gpu"])
    engine(DIGESTS, plan=PLAN + " stages=2")
    capsys.readouterr()
    assert golden.main(["verify", "--engine", "gpu"]) == 0
    assert f"{NAME}: as recorded, by another plan: stages none -> 2\n" in capsys.readouterr().out


def test_a_missing_real_valued_key_is_untested_also_with_another_triton(file, engine, capsys, monkeypatch):
    engine(DIGESTS)
    golden.main(["record", "--engine", "gpu"])
    monkeypatch.setitem(GPU, "triton", "3.9.0")
    capsys.readouterr()
    assert golden.main(["verify", "--engine", "gpu"]) == 1
    assert f"UNTESTED  {FULL.replace('3.8.0', '3.9.0')}\n" in capsys.readouterr().out


def test_a_problem_fails_verify_and_shows_its_first_line(file, engine, capsys, monkeypatch):
    engine(DIGESTS)
    golden.main(["record", "--engine", "gpu"])
    wrong = Outcome(problem="first line\nsecond line")
    tasks = Task(CASES[0], "w4a16", "prefill_w4a16"), Task(REAL[0], "w4a16", KERNELS[0])
    failed = Run(Engine("sm_90", "cuda:0", GPU, "data center"), dict.fromkeys(tasks, wrong))
    monkeypatch.setattr(golden_work, "runs", lambda engine, cases, times, cache: [failed])
    assert golden.main(["verify", "--engine", "gpu", "--case", CASES[0].id, "--case", REAL[0].id]) == 1
    out = capsys.readouterr().out
    assert f"FAILED    {KEYS[0]}\n          prefill_w4a16: first line\n" in out
    assert f"FAILED    {FULL}\n          first line\n  -> " in out
    assert "pytest --case ID --engine gpu" in out and "0 as recorded, 1 FAILED" in out
    assert f"UNTESTED  {REAL[0].id}/{KERNELS[1]}/sm_90/data center/3.8.0\n" in out


@pytest.mark.parametrize("problem", ["varies", "fails"])
def test_a_real_valued_output_that_varies_or_fails_is_the_only_one_not_recorded(
    file, engine, capsys, monkeypatch, problem
):
    made_up = Runs(DIGESTS)

    def runs(engine, cases, times):
        first, second = made_up(engine, cases, times)
        bad = Outcome("f" * 64, plan=PLAN) if problem == "varies" else Outcome(problem="wrong")
        return [first, Run(second.engine, second.outcomes | {Task(REAL[0], "w4a16", KERNELS[0]): bad})]

    monkeypatch.setattr(golden_work, "runs", runs)
    assert golden.main(["record", "--engine", "gpu"]) == 1
    assert f"{NAME} {problem}" in capsys.readouterr().err
    assert exact.read(file).keys() == set(KEYS)
    assert recorded_in(file)[0].keys() == {name_of(kernel) for kernel in KERNELS[1:]}


def test_a_recording_with_both_kinds_is_merged_where_the_sources_are_the_same(
    file, engine, tmp_path, capsys, monkeypatch
):
    engine(DIGESTS)
    out = tmp_path / "recording.json"
    with monkeypatch.context() as without_git:
        without_git.setattr(provenance, "clean_commit", None)
        assert golden.main(["record", "--engine", "gpu", "--out", str(out)]) == 0
    assert not file.exists()
    told = f"3 digests of order-free cases confirmed by sm_90 triton 3.8.0, {len(KERNELS)} of real-valued cases"
    assert told in capsys.readouterr().out
    held = json.loads(out.read_text())
    outcome = {"digest": "e" * 64, "plan": PLAN, "problem": None}
    expected = {"engine": "sm_90", "provenance": GPU, "sources": SOURCES, "digests": DIGESTS}
    assert held == expected | {"check": held["check"], "recorded": {name_of(one): outcome for one in KERNELS}}
    monkeypatch.setattr(provenance, "sources_digest", lambda root: "f" * 64)
    assert golden.main(["record", "--from", str(out)]) == 1
    assert f"made from the sources {SOURCES}, but this tree's are {'f' * 64}" in capsys.readouterr().err
    assert not file.exists()
    monkeypatch.setattr(provenance, "sources_digest", lambda root: SOURCES)
    assert golden.main(["record", "--from", str(out)]) == 0
    assert digests_in(file) == DIGESTS and recorded_in(file)[0].keys() == {name_of(one) for one in KERNELS}


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        ("prefill_w4a4_atomic", "prefill_w4a4_atomic is declared to add in any order"),
        ("nobody", "no case and kernel owe it on sm_90"),
        ("prefill_w4a4", "no case and kernel owe it on sm_90"),
    ],
)
def test_a_digest_of_an_order_dependent_kernel_and_one_that_nothing_owes_are_refused(
    file, engine, tmp_path, capsys, kernel, why
):
    outcome = Outcome("e" * 64, plan=PLAN)
    found = Recording("sm_90", GPU, SOURCES, DIGESTS, {NAME: outcome, name_of(kernel): outcome})
    recording_file.write(tmp_path / "recording.json", found)
    assert golden.main(["record", "--from", str(tmp_path / "recording.json")]) == 1
    assert f"{name_of(kernel)}: {why}" in capsys.readouterr().err
    assert not file.exists() and recorded_in(file) == ({}, [])


@pytest.mark.parametrize("where", ["exact.json", "recorded/sm_90/3.8.0.json"])
def test_an_entry_that_the_commit_has_and_the_file_has_not_is_refused(file, engine, capsys, monkeypatch, where):
    """Recording would add it again, without its history."""
    engine(DIGESTS)
    golden.main(["record", "--engine", "gpu"])
    path, lost = file.parent / where, KEYS[1] if where == "exact.json" else NAME
    committed = set(json.loads(path.read_text())["entries"]) | {"orderfree-gone/w4a16"}
    if where == "exact.json":
        exact.write(path, {name: entry for name, entry in exact.read(path).items() if name != lost})
    else:
        recorded.write(path, {name: entry for name, entry in recorded.read(path)[0].items() if name != lost}, [])
    dropped = path.read_bytes()
    monkeypatch.setattr(provenance, "committed_entries", lambda root, one: committed if one == path else set())
    capsys.readouterr()
    assert golden.main(["record", "--engine", "gpu"]) == 1
    assert f"{path.name} lacks {lost}, which the commit has; take it from git again" in capsys.readouterr().err
    assert path.read_bytes() == dropped
    assert golden.main(["verify", "--engine", "gpu"]) == 1
    assert f"UNTESTED  {lost if where == 'exact.json' else FULL}\n" in capsys.readouterr().out
