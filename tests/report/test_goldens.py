"""The history of golden/: every change with its reason, and damage that is said."""

import json
import shutil

import pytest

from nvfp4_suite.ci import codegen, exact
from nvfp4_suite.ci import recorded as real
from nvfp4_suite.ci.report import goldens

from .shown import GOLDEN, recorded


@pytest.fixture
def golden(tmp_path):
    return shutil.copytree(GOLDEN, tmp_path / "golden")


def test_what_is_recorded_is_counted():
    held = json.loads((GOLDEN / "exact.json").read_text())
    told = recorded().counts
    assert told[0].startswith(f"{len(held['entries'])} digests of order-free cases, confirmed by: interpreter ")
    assert any(line.endswith("digests of real-valued cases on sm_90 with Triton 3.8.0") for line in told)
    assert any("of 23 cards" in line for line in told) and recorded().damaged == ()


def test_the_changes_of_the_plans_are_told_the_newest_first():
    held = json.loads((GOLDEN / "plans.json").read_text())["changes"]
    told = [change for change in recorded().changes if change.what == "plans"]
    assert [change.reason for change in told] == [change["reason"] for change in reversed(held)]
    assert told[0].difference == tuple(held[-1]["difference"]) and told[0].commit == held[-1]["commit"]


def test_digests_that_changed_for_one_reason_are_one_change(golden):
    entries = exact.read(golden / "exact.json")
    for place, entry in enumerate(list(entries.values())[:3]):
        change = {"old": "a" * 64, "new": entry["digest"], "reason": f"why {place // 2}", "commit": "c" * 40}
        entry["changes"].append(change)
    exact.write(golden / "exact.json", entries)
    found = [one for one in goldens.read(golden).changes if one.what == "digests"]
    assert sorted((one.reason, len(one.difference)) for one in found) == [("why 0", 2), ("why 1", 1)]
    assert f": {'a' * 12} -> " in found[0].difference[0]


def test_a_real_valued_digest_that_changed_is_told_with_what_differed_beside_it(golden):
    path = golden / "recorded" / "sm_90" / "3.8.0.json"
    entries, _ = real.read(path)
    key, digest = next((key, entry["digest"]) for key, entry in entries.items())
    change = {"key": key, "old": "a" * 64, "new": digest, "difference": "warps 4 -> 8", "reason": "faster"}
    real.write(path, entries, [change | {"commit": "c" * 40}])
    (told,) = [one for one in goldens.read(golden).changes if one.what == "digests of sm_90 with Triton 3.8.0"]
    assert told.reason == "faster" and told.difference[0] == f"{key}: {'a' * 12} -> {digest[:12]}; warps 4 -> 8"


def test_code_that_changed_is_told_by_its_triton(golden):
    change = {"commit": "c" * 40, "difference": ["sm_90-x: registers 1 -> 2"], "reason": "a new loop"}
    document = codegen.document("3.8.0", {("ptxas 12.9", "sm_90-x"): "target=sm_90a"}, [change])
    (golden / "codegen" / "3.8.0.json").write_text(json.dumps(document))
    found = goldens.read(golden)
    assert "1 launches as Triton 3.8.0 compiles them" in found.counts
    (told,) = [one for one in found.changes if one.what == "code of Triton 3.8.0"]
    assert (told.reason, told.difference) == ("a new loop", ("sm_90-x: registers 1 -> 2",))


@pytest.mark.parametrize("name", ["exact.json", "plans.json", "recorded/sm_90/3.8.0.json", "codegen/3.8.0.json"])
@pytest.mark.parametrize("content", ["{", "[]", '{"count": 1}', '{"entries": {"a": {}}}', None])
def test_damage_is_said(golden, name, content):
    if content is None:
        (golden / name).unlink(missing_ok=True)
    else:
        (golden / name).write_text(content)
    expected = [] if content is None and "/" in name else [f"golden/{name}"]
    assert [file for file, _ in goldens.read(golden).damaged] == expected
