"""The rules by which golden/exact.json changes, on made-up entries."""

import copy
import json

import pytest

from nvfp4_suite.ci import exact, golden_file, outcomes
from nvfp4_suite.ci.golden import GOLDEN
from nvfp4_suite.ci.outcomes import Finding, Outcome, Recording, Refused

A, B = "a" * 64, "b" * 64
KEY, OTHER = "orderfree-x/w4a16", "orderfree-y/w4a16"
FACTS = {"python": "3.11.7", "torch": "2.13.0", "device": "x86_64"}
GPU = FACTS | {"device": "NVIDIA H200", "driver": "580", "triton": "3.8.0", "assembler": "ptxas 12.9"}
COMMIT = "c" * 40


def entries(digest: str = A) -> exact.Entries:
    return {KEY: {"digest": digest, "confirmed_by": {"reference": FACTS}, "changes": []}}


def recorded(digests: dict[str, str], engine: str = "reference", facts: dict = FACTS) -> Recording:
    return Recording(engine, facts, "sources", digests)


def merge(recording: Recording, into: exact.Entries, reason: str | None = None) -> exact.Entries:
    outcomes.check_reason(exact.conflicts(recording, into), reason)
    return exact.merge(recording, into, reason=reason, commit=COMMIT)


def test_a_new_key_becomes_an_entry_and_the_others_stay():
    before = entries()
    merged = merge(recorded({OTHER: B}), before)
    assert merged == entries() | {OTHER: {"digest": B, "confirmed_by": {"reference": FACTS}, "changes": []}}
    assert before == entries()


def test_an_equal_digest_adds_its_engine():
    before = entries()
    merged = merge(recorded({KEY: A}, "sm_90", GPU), before)
    assert merged[KEY]["confirmed_by"] == {"reference": FACTS, "sm_90 triton 3.8.0": GPU}
    assert before == entries()


def test_a_gpu_with_another_triton_is_another_engine():
    older = GPU | {"triton": "3.6.0+git1"}
    merged = merge(recorded({KEY: A}, "sm_90", older), merge(recorded({KEY: A}, "sm_90", GPU), entries()))
    assert merged[KEY]["confirmed_by"] == {
        "reference": FACTS,
        "sm_90 triton 3.8.0": GPU,
        "sm_90 triton 3.6.0": older,
    }


def test_a_later_run_of_an_engine_replaces_its_provenance():
    newer = FACTS | {"torch": "2.14.1"}
    assert merge(recorded({KEY: A}, facts=newer), entries())[KEY]["confirmed_by"] == {"reference": newer}


def test_a_differing_digest_is_refused_and_both_are_named():
    with pytest.raises(Refused) as refusal:
        merge(recorded({KEY: B, OTHER: B}, "sm_90", GPU), entries())
    lines = str(refusal.value).splitlines()
    assert lines[1:] == [f"{KEY}: sm_90 gives {B},", f"  but recorded is {A}, confirmed by reference"]


def test_a_reason_changes_a_digest_is_kept_and_ends_older_confirmations():
    merged = merge(recorded({KEY: B}, "interpreter"), entries(), "down rounds once less")
    change = {"old": A, "new": B, "reason": "down rounds once less", "commit": COMMIT}
    assert merged == {KEY: {"digest": B, "confirmed_by": {"interpreter": FACTS}, "changes": [change]}}
    again = merge(recorded({KEY: A}), merged, "and back")[KEY]
    assert [one["reason"] for one in again["changes"]] == ["down rounds once less", "and back"]


@pytest.mark.parametrize(
    ("digest", "reason"), [(A, "no need"), (B, ""), (B, " ")], ids=["no change", "no text", "blank"]
)
def test_a_reason_without_a_change_or_without_a_text_is_refused(digest, reason):
    with pytest.raises(Refused, match="--reason is"):
        merge(recorded({KEY: digest}), entries(), reason)


def test_a_digest_cannot_change_without_a_reason_whoever_asks():
    with pytest.raises(Refused, match="only with --reason"):
        exact.merge(recorded({KEY: B}), entries(), reason=None, commit=COMMIT)


def test_a_new_key_is_shown_beside_other_rounding_forms_of_its_case():
    new = recorded({"orderfree-x/w4a4": B, KEY: A})
    assert exact.announce(new, entries()) == [f"new orderfree-x/w4a4: {B}", f"  beside {KEY}: {A}"]


def test_two_equal_runs_agree():
    assert outcomes.agreed({KEY: Outcome(A)}, {KEY: Outcome(A)}) == ({KEY: Outcome(A)}, [])


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({KEY: Outcome(B)}, f"varies: {A} in one fresh process, {B} in the next"),
        ({KEY: Outcome(problem="wrong sign")}, "fails: wrong sign"),
        ({}, "fails: not run"),
    ],
    ids=["varies", "fails", "missing"],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_what_two_runs_do_not_agree_on_is_told(second, message, swapped):
    runs = [{KEY: Outcome(A), OTHER: Outcome(B)}, {OTHER: Outcome(B)} | second]
    expected = f"varies: {B} in one fresh process, {A} in the next" if swapped and "varies" in message else message
    good, lines = outcomes.agreed(*(reversed(runs) if swapped else runs))
    assert (good, lines) == ({OTHER: Outcome(B)}, [f"{KEY} {expected}"])


def test_compare_names_what_failed_changed_and_is_new():
    found = {KEY: Outcome(A), OTHER: Outcome(B), "failing": Outcome(problem="one ulp"), "changing": Outcome(B)}
    recorded_ones = entries() | {"changing": entries()[KEY], "failing": entries()[KEY], "not run": entries()[KEY]}
    assert outcomes.compare(found, recorded_ones) == [
        Finding("CHANGED", "changing", (f"recorded {A}", f"found    {B}")),
        Finding("FAILED", "failing", ("one ulp",)),
        Finding("UNTESTED", OTHER),
    ]


def test_a_confirmed_key_that_is_no_longer_run_is_untested():
    recorded, ids = entries(), {exact.case_id(KEY)}
    (engine,) = recorded[KEY]["confirmed_by"]
    (finding,) = exact.not_run(engine, {}, recorded, ids)
    assert (finding.status, finding.key) == ("UNTESTED", KEY)
    assert exact.not_run(engine, {KEY: Outcome(A)}, recorded, ids) == []
    assert exact.not_run(engine, {}, recorded, set()) == []
    assert exact.not_run("sm_75", {}, recorded, ids) == []


def test_a_key_that_no_case_has_is_stale():
    assert outcomes.stale(entries(), {OTHER}) == [Finding("STALE", KEY)]
    assert outcomes.stale(entries(), {KEY, OTHER}) == []


@pytest.fixture
def file(tmp_path):
    """A place for a golden file, beside the real schema."""
    (tmp_path / exact.SCHEMA).write_bytes(GOLDEN.with_name(exact.SCHEMA).read_bytes())
    return tmp_path / "exact.json"


def test_what_is_written_is_read_back(file):
    changed = merge(recorded({KEY: B}), entries() | {OTHER: entries()[KEY]}, "because")
    exact.write(file, changed)
    assert exact.read(file) == changed
    assert json.loads(file.read_text()) == json.loads(exact.text(changed))
    assert {path.name for path in file.parent.iterdir()} == {file.name, exact.SCHEMA}


def test_the_text_has_one_line_a_fact_in_sorted_order():
    expected = """\
{
 "$schema": "exact.schema.json",
 "entries": {
  "orderfree-x/w4a16": {
   "changes": [],
   "confirmed_by": {
    "reference": {"check": "%s", "device": "x86_64", "python": "3.11.7", "torch": "2.13.0"}
   },
   "digest": "%s"
  }
 }
}
"""
    check = golden_file.check_of(KEY, "reference", A, FACTS)
    assert exact.text(entries()) == expected % (check, A)


def test_no_file_has_no_entries(file):
    assert exact.read(file) == {}


def broken(**parts) -> exact.Entries:
    return {KEY: copy.deepcopy(entries()[KEY]) | parts}


@pytest.mark.parametrize(
    "bad",
    [
        broken(digest="A" * 64),
        broken(note="by hand"),
        broken(confirmed_by={}),
        broken(confirmed_by={"tpu": FACTS}),
        broken(confirmed_by={"reference": FACTS | {"host": "mine"}}),
        broken(confirmed_by={"sm_90": GPU}),
        broken(confirmed_by={"sm_90 triton 3.8.0": FACTS}),
        broken(changes=[{"old": A, "new": B, "reason": " ", "commit": COMMIT}]),
        broken(changes=[{"old": A, "new": B, "reason": "why"}]),
        {"no slash": entries()[KEY]},
        {KEY: {"digest": A, "confirmed_by": {"reference": FACTS}}},
    ],
)
def test_what_the_schema_does_not_accept_is_not_written(file, bad):
    exact.write(file, entries())
    with pytest.raises(Refused, match="would break its schema at"):
        exact.write(file, bad)
    assert exact.read(file) == entries()
