"""The rules by which golden/exact.json changes, on made-up entries."""

import copy
import json

import pytest

from nvfp4_suite.ci import exact
from nvfp4_suite.ci.exact import Finding, Outcome, Recording, Refused
from nvfp4_suite.ci.golden import GOLDEN

A, B = "a" * 64, "b" * 64
KEY, OTHER = "orderfree-x/w4a16", "orderfree-y/w4a16"
FACTS = {"python": "3.11.7", "torch": "2.13.0", "device": "x86_64"}
COMMIT = "c" * 40


def entries(digest: str = A) -> exact.Entries:
    return {KEY: {"digest": digest, "confirmed_by": {"reference": FACTS}, "changes": []}}


def recorded(digests: dict[str, str], engine: str = "reference", facts: dict = FACTS) -> Recording:
    return Recording(engine, facts, "sources", digests)


def merge(recording: Recording, into: exact.Entries, reason: str | None = None) -> exact.Entries:
    return exact.merge(recording, into, reason=reason, commit=COMMIT)


def test_a_new_key_becomes_an_entry_and_the_others_stay():
    before = entries()
    merged = merge(recorded({OTHER: B}), before)
    assert merged == entries() | {OTHER: {"digest": B, "confirmed_by": {"reference": FACTS}, "changes": []}}
    assert before == entries()


def test_an_equal_digest_adds_its_engine():
    gpu = {"device": "NVIDIA H200"}
    before = entries()
    assert merge(recorded({KEY: A}, "sm_90", gpu), before)[KEY]["confirmed_by"] == {"reference": FACTS, "sm_90": gpu}
    assert before == entries()


def test_a_later_run_of_an_engine_replaces_its_provenance():
    newer = FACTS | {"torch": "2.14.1"}
    assert merge(recorded({KEY: A}, facts=newer), entries())[KEY]["confirmed_by"] == {"reference": newer}


def test_a_differing_digest_is_refused_and_both_are_named():
    with pytest.raises(Refused) as refusal:
        merge(recorded({KEY: B, OTHER: B}, "sm_90"), entries())
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


def test_a_new_key_is_shown_beside_other_rounding_forms_of_its_case():
    new = recorded({"orderfree-x/w4a4": B, KEY: A})
    assert exact.announce(new, entries()) == [f"new orderfree-x/w4a4: {B}", f"  beside {KEY}: {A}"]


def test_two_equal_runs_agree():
    assert exact.agreed({KEY: Outcome(A)}, {KEY: Outcome(A)}) == {KEY: A}


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
def test_two_runs_that_do_not_agree_are_refused(second, message, swapped):
    runs = [{KEY: Outcome(A)}, second]
    expected = f"varies: {B} in one fresh process, {A} in the next" if swapped and "varies" in message else message
    with pytest.raises(Refused) as refusal:
        exact.agreed(*(reversed(runs) if swapped else runs))
    assert f"{KEY} {expected}" in str(refusal.value)


def test_compare_names_what_failed_changed_and_is_new():
    outcomes = {KEY: Outcome(A), OTHER: Outcome(B), "failing": Outcome(problem="one ulp"), "changing": Outcome(B)}
    recorded_ones = entries() | {"changing": entries()[KEY], "failing": entries()[KEY], "not run": entries()[KEY]}
    assert exact.compare(outcomes, recorded_ones) == [
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
    assert exact.stale(entries(), {OTHER}) == [Finding("STALE", KEY)]
    assert exact.stale(entries(), {KEY, OTHER}) == []


@pytest.fixture
def file(tmp_path):
    """A place for a golden file, beside the real schema."""
    (tmp_path / exact.SCHEMA).write_bytes(GOLDEN.with_name(exact.SCHEMA).read_bytes())
    return tmp_path / "exact.json"


def test_what_is_written_is_read_back(file):
    changed = merge(recorded({KEY: B}), entries() | {OTHER: entries()[KEY]}, "because")
    exact.write(file, changed)
    assert exact.read(file) == changed
    assert json.loads(file.read_text()) == {"$schema": exact.SCHEMA, "count": 2, "entries": changed}
    assert {path.name for path in file.parent.iterdir()} == {file.name, exact.SCHEMA}


def test_the_text_has_one_line_a_fact_in_sorted_order():
    expected = """\
{
 "$schema": "exact.schema.json",
 "count": 1,
 "entries": {
  "orderfree-x/w4a16": {
   "changes": [],
   "confirmed_by": {
    "reference": {"device": "x86_64", "python": "3.11.7", "torch": "2.13.0"}
   },
   "digest": "%s"
  }
 }
}
"""
    assert exact.text(entries()) == expected % A


def test_no_file_has_no_entries(file):
    assert exact.read(file) == {}


def test_a_count_that_is_not_the_number_of_entries_is_refused(file):
    file.write_text(exact.text(entries()).replace('"count": 1', '"count": 2'))
    with pytest.raises(Refused, match="says count 2, but has 1 entries"):
        exact.read(file)


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
        broken(confirmed_by={"sm_90": FACTS}),
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
