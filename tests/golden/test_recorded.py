"""golden/recorded/ is whole, and the rules by which it changes, on made-up entries."""

import json

import pytest

from nvfp4_suite.cases.layers import ALL, LONG
from nvfp4_suite.ci import golden_due, recorded
from nvfp4_suite.ci.golden import ROOT
from nvfp4_suite.ci.outcomes import Outcome, Recording, Refused
from nvfp4_suite.ci.recorded import Key
from nvfp4_suite.kernels.hopper import TRITONS
from nvfp4_suite.kernels.registry import KERNELS

from .processes import GPU

FOLDER = ROOT / "golden"
FILES = recorded.paths(FOLDER)
SCHEMA = json.loads((FOLDER / "recorded" / recorded.SCHEMA).read_text(encoding="utf-8"))
A, B = "a" * 64, "b" * 64
SMALL, WIDE = "kernel=k BLOCK_M=16", "kernel=k BLOCK_M=32 stages=3"
NAME, OTHER = recorded.name("random-x", "k", "data center"), recorded.name("random-x", "l", "data center")
COMMIT = "c" * 40


def test_what_is_recorded_is_named():
    """So that no file, and with it all of its keys, is lost unseen."""
    assert {str(path.relative_to(FOLDER)) for path in FILES} >= {
        f"recorded/sm_90/{one}.json" for one in ("3.6.0", "3.8.0")
    }


def test_each_file_is_as_the_tool_writes_it():
    """Where one is only out of order, after a merge: `golden prune`."""
    import jsonschema  # a GPU host may lack it

    for path in FILES:
        jsonschema.validate(json.loads(path.read_text(encoding="utf-8")), SCHEMA)
        assert path.read_text(encoding="utf-8") == recorded.text(path.parent.name, path.stem, *recorded.read(path))


def test_each_file_has_every_key_that_is_owed_and_no_other():
    """For each speed class that has any: a key that is dropped, and a case or a kernel that is added, shows here."""
    for path in FILES:
        names = set(recorded.read(path)[0])
        speeds = {recorded.key_in(path, name).speed for name in names}
        owed = {name for name in golden_due.known_recorded(path.parent.name) if name.split("/")[2] in speeds}
        awaited = golden_due.AWAITED.get(f"{path.parent.name} triton {path.stem}", golden_due.Awaited((), ()))
        assert speeds and names == {name for name in owed if not awaited.covers(*name.split("/")[:2])}, path


def test_what_is_awaited_is_owed():
    cases = {case.id for case in ALL}
    for engine, awaited in golden_due.AWAITED.items():
        assert set(awaited.cases) <= cases and set(awaited.kernels) <= KERNELS.keys(), engine


def test_the_long_cases_tell_apart_kernels_that_add_in_another_order():
    """And no others, as the families of kernels/variants.py say. Short sums are the same in any order."""
    of_long = {case.id for case in LONG if case.format == "w4a16"}
    for path in FILES:
        orders = orders_in(path)
        found: dict[str, dict[str, str]] = {}
        for name, entry in recorded.read(path)[0].items():
            case, kernel, _ = name.split("/")
            found.setdefault(case, {})[kernel] = entry["digest"]
        for case in of_long:
            for order in orders:
                assert len({found[case][kernel] for kernel in order}) == 1, (path, case, order)
        assert max(len(set(found[case].values())) for case in of_long) == len(orders), path


def orders_in(path) -> list[tuple[str, ...]]:
    """The kernels that add in each order, but for those whose digests are awaited there."""
    if path.stem in TRITONS:
        orders = [PLAIN, PAIRED, ("decode_w4a16",), ("prefill_w4a16_hopper",), ("decode_w4a16_hopper",)]
    else:  # there the kernels for sm_90 are other names for the others' launches
        orders = [PLAIN, PAIRED, ("decode_w4a16", "decode_w4a16_hopper")]
    awaited = golden_due.AWAITED.get(f"{path.parent.name} triton {path.stem}", golden_due.Awaited((), ())).kernels
    return list(filter(None, (tuple(name for name in order if name not in awaited) for order in orders)))


PLAIN = ("prefill_w4a16", "prefill_w4a16_words", "prefill_w4a16_emulated")
PAIRED = ("prefill_w4a16_pair", "prefill_w4a16_table")


def test_the_schema_is_one():
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def entry(digest: str = A, plan: str = SMALL, **facts: str) -> dict:
    return GPU | {"digest": digest, "plan": plan} | facts


def of(name: str, digest: str = A, plan: str = SMALL, **facts: str) -> Recording:
    return Recording("sm_90", GPU | facts, "sources", {}, {name: Outcome(digest, plan=plan)})


def test_a_new_key_becomes_an_entry_and_the_others_stay():
    before = {NAME: entry()}
    merged = recorded.merge(of(OTHER, B), before, [], reason=None, commit=COMMIT)
    assert merged == ({NAME: entry(), OTHER: entry(B)}, [])
    assert before == {NAME: entry()}


def test_an_equal_digest_takes_the_provenance_of_the_later_run():
    merged = recorded.merge(of(NAME, A, WIDE, torch="2.14.1"), {NAME: entry()}, [], reason=None, commit=COMMIT)
    assert merged == ({NAME: entry(A, WIDE, torch="2.14.1")}, [])


def test_a_changed_digest_is_told_with_what_differs_beside_it_and_kept():
    later = of(NAME, B, WIDE, torch="2.14.1")
    told = (
        f"{NAME}: sm_90 gives {B},",
        f"  but recorded is {A}; BLOCK_M 16 -> 32, stages none -> 3, torch 2.11.0+cu130 -> 2.14.1",
    )
    assert tuple(recorded.conflicts(later, {NAME: entry()})) == told
    entries, changes = recorded.merge(later, {NAME: entry()}, [{"key": "earlier"}], reason="wider", commit=COMMIT)
    difference = "BLOCK_M 16 -> 32, stages none -> 3, torch 2.11.0+cu130 -> 2.14.1"
    change = {"commit": COMMIT, "difference": difference, "key": NAME, "new": B, "old": A, "reason": "wider"}
    assert changes == [{"key": "earlier"}, change] and entries[NAME]["digest"] == B


def test_a_digest_cannot_change_without_a_reason_whoever_asks():
    with pytest.raises(Refused, match="only with --reason"):
        recorded.merge(of(NAME, B), {NAME: entry()}, [], reason=None, commit=COMMIT)


KEY = Key("random-x", "k", "sm_90", "data center", "3.8.0")


def test_the_nearest_relative_differs_in_the_least():
    """One difference is nearer than two; of one, the Triton is the least and the kernel the most."""
    order = [
        KEY._replace(triton="3.6.0"),
        KEY._replace(speed="H20"),
        KEY._replace(arch="sm_100"),
        KEY._replace(kernel="l"),
        KEY._replace(speed="H20", triton="3.6.0"),
        KEY._replace(kernel="l", triton="3.6.0"),
        KEY._replace(kernel="l", arch="sm_100", speed="H20"),
    ]
    for place, near in enumerate(order):
        others = [*reversed(order[place:]), KEY, KEY._replace(case="random-y")]
        assert recorded.nearest(KEY, dict.fromkeys(others, entry())) == near


def test_a_case_without_another_key_has_no_relative():
    assert recorded.nearest(KEY, {KEY: entry(), KEY._replace(case="random-y"): entry()}) is None


def test_a_new_key_is_shown_against_its_nearest_also_a_new_one():
    others = {KEY._replace(kernel="m"): entry(B, WIDE)}
    both = Recording("sm_90", GPU, "sources", {}, {NAME: Outcome(A, plan=SMALL), OTHER: Outcome(A, plan=SMALL)})
    lines = recorded.announce(both, {OTHER: entry()}, others)
    assert lines == [
        f"new {KEY}: {A}",
        f"  beside {KEY._replace(kernel='m')}: another digest, {B}; BLOCK_M 32 -> 16, stages 3 -> none",
    ]
    first, near, *_ = recorded.announce(both, {}, {})
    assert (first, near) == (
        f"new {KEY}: {A}",
        f"  beside {KEY._replace(kernel='l')}: the same digest; nothing else differs",
    )


def test_a_recorded_key_that_is_no_longer_run_is_untested_in_its_speed_class_alone():
    entries = {NAME: entry(), recorded.name("random-x", "k", "H20"): entry()}
    found = recorded.not_run({}, entries, "data center", {"random-x"})
    assert [(one.status, one.key) for one in found] == [("UNTESTED", NAME)]
    assert recorded.not_run({NAME: Outcome(A)}, entries, "data center", {"random-x"}) == []
    assert recorded.not_run({}, entries, "data center", {"random-y"}) == []


def test_what_the_schema_does_not_accept_is_not_written(tmp_path):
    (tmp_path / "recorded").mkdir()
    (tmp_path / "recorded" / recorded.SCHEMA).write_text(json.dumps(SCHEMA))
    path = recorded.path_of(tmp_path, "sm_90", "3.8.0")
    recorded.write(path, {NAME: entry()}, [])
    for bad in (
        {NAME: entry(note="by hand")},
        {NAME: entry("A" * 64)},
        {"random-x/k": entry()},
        {NAME: entry(plan="")},
    ):
        with pytest.raises(Refused, match="would break its schema"):
            recorded.write(path, bad, [])
    assert recorded.read(path) == ({NAME: entry()}, [])


def test_an_entry_is_one_line(tmp_path):
    lines = recorded.text("sm_90", "3.8.0", {NAME: entry(), OTHER: entry(B)}, []).splitlines()
    assert [line.split('"')[1] for line in lines if '"digest"' in line] == [NAME, OTHER]
