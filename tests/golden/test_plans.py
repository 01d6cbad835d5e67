"""golden/plans.json holds the plans of today, and a difference is told as a person would tell it."""

import json
import re
from dataclasses import replace
from functools import cache

import pytest

from nvfp4_suite.ci import golden, golden_file, plans, plans_diff, plans_file, provenance
from nvfp4_suite.ci.golden import PLANS
from nvfp4_suite.ci.golden_file import Refused
from nvfp4_suite.contract.gpu_names import GEFORCE, H20, SpeedClass, speed_class
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import CHECKPOINTS
from nvfp4_suite.kernels import plan, tuning
from nvfp4_suite.kernels.releases import TRITONS

PLANNED = plans.cells
GEFORCE_86 = (GEFORCE, (8, 6))
COMMIT = "c" * 40


@cache
def today() -> list[plans.Cell]:
    """Not before a test asks: to plan them takes seconds, which every process that collects tests would wait."""
    return PLANNED()


@cache
def recorded() -> tuple[list[plans.Cell], list[dict]]:
    return plans_file.read(PLANS)


@cache
def written() -> str:
    return golden_file.text(plans_file.document(today(), []))


def replanned(monkeypatch, key: tuple[SpeedClass, tuple[int, int] | None], **fields) -> list[plans.Cell]:
    """All cells, with other `fields` in one tuning record."""
    cards = [gpu for gpu in plans.CARDS if speed_class(gpu) == key[0]]
    with monkeypatch.context() as edit:
        edit.setitem(tuning.RECORDS, key, replace(tuning.RECORDS[key], **fields))
        _forget()
        found = {cell.key: cell for cell in PLANNED(cards)}
    _forget()
    return [found.get(cell.key, cell) for cell in today()]


def _forget() -> None:
    plan.plan_layer.cache_clear()
    plan._choices.cache_clear()


def from_tokens(key, block_m: int, least: int) -> tuple:
    """The steps of a record, with `block_m` from `least` tokens per expert."""
    return tuple((least if tile.block_m == block_m else old, tile) for old, tile in tuning.RECORDS[key].steps)


def test_the_plans_of_today_are_the_recorded_ones():
    """Where the difference is meant: commit it, then `golden record --plans --reason TEXT`."""
    assert plans_diff.explained(recorded()[0], today()) == []


def test_the_file_is_as_the_tool_writes_it():
    import jsonschema  # a GPU host may lack it

    schema = json.loads(PLANS.with_name(plans_file.SCHEMA).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    held = json.loads(PLANS.read_text(encoding="utf-8"))
    jsonschema.validate(held, schema)
    assert PLANS.read_text(encoding="utf-8") == golden_file.text(plans_file.document(today(), recorded()[1]))


def test_it_covers_what_it_should():
    assert len(plans.CARDS) >= 18
    assert len(plans.TOKENS) == 19
    assert set(plans.SETTINGS) == {(scales, triton) for scales in (False, True) for triton in TRITONS}
    assert len(today()) == len(recorded()[0]) == len(plans.CARDS) * len(CHECKPOINTS) * 19 * 8
    classes = {key for key, _ in tuning.RECORDS}
    assert {cell.speed.split(" sm_")[0] for cell in today()} == {found.name for found in classes} | {
        "unknown architecture"
    }


def test_a_threshold_that_moves_is_told_as_its_author_told_it(monkeypatch):
    """FreeToken's "pipeline the nvfp4 prefill scale loads", which takes blocks of 64 from 100 tokens per expert instead
    of 150: "differs only on sm_86 GeForce at 102 - 128 tokens per expert (BLOCK_SIZE_M 32 -> 64)".
    """
    before = replanned(monkeypatch, GEFORCE_86, steps=from_tokens(GEFORCE_86, 64, 150))
    first, *details, cards = plans_diff.explained(before, today())
    assert first == (
        "differs only on GeForce sm_86 at 102 to 128 tokens per expert: BLOCK_M 32 -> 64, BLOCK_N 128 -> 64, "
        "BLOCK_KB 64 -> 32, K_UNIT 32 -> 64, SCALE_WORDS False -> True"
    )
    assert details == ["  gate_up.warps 4 -> 8 in 10 of 16 plans", "  warps 4 -> 8 in 6 of 16 plans"]
    assert cards == "  on NVIDIA GeForce RTX 3080 Ti, NVIDIA GeForce RTX 3090"
    back, *_ = plans_diff.explained(today(), before)
    assert back.startswith("differs only on GeForce sm_86 at 102 to 128 tokens per expert: BLOCK_M 64 -> 32, ")


def test_changes_in_two_places_are_told_apart(monkeypatch):
    steps = tuple((least, replace(tile, num_stages=2)) for least, tile in tuning.RECORDS[H20, None].steps)
    other = replanned(monkeypatch, (H20, None), steps=steps)
    sm_86 = replanned(monkeypatch, GEFORCE_86, scale_words=None)
    mixed = [b if b.speed.startswith("GeForce") else a for a, b in zip(other, sm_86, strict=True)]
    lines = plans_diff.explained(today(), mixed)
    assert lines[0].startswith("differs on GeForce sm_86 at 102 to 2,048 tokens per expert: K_UNIT 64 -> 32, ")
    assert "differs on H20 sm_90 at 1.6 to 2,048 tokens per expert: stages 3 -> 2" in lines


def test_a_card_that_changes_its_class_is_told(monkeypatch):
    moved = [replace(cell, speed="H20 sm_90") if cell.card == "NVIDIA H200" else cell for cell in today()]
    assert plans_diff.explained(today(), moved) == [
        "differs only on H20 sm_90 at 0.0195 to 2,048 tokens per expert: class data center sm_90 -> H20 sm_90",
        "  on NVIDIA H200",
    ]


def test_what_is_in_one_table_alone_is_told():
    fewer = [cell for cell in today() if cell.card != "NVIDIA H20" or cell.shape != "GLM-4.7"]
    assert plans_diff.explained(today(), fewer) == ["gone: NVIDIA H20, GLM-4.7: 19 plans"]
    one = [cell for cell in today() if cell.key[:3] != ("NVIDIA H20", (True, "3.8.0"), "GLM-4.7")]
    lost = "gone: NVIDIA H20, GLM-4.7: 19 plans (with input scales: Triton 3.8.0)"
    assert plans_diff.explained(today(), one) == [lost]
    assert plans_diff.explained(fewer, today()) == ["new: NVIDIA H20, GLM-4.7: 19 plans"]
    assert plans_diff.changes_of(fewer, today()) == []
    assert plans_diff.changes_of(today(), fewer) == ["gone: NVIDIA H20, GLM-4.7: 19 plans"]


def test_a_change_under_some_settings_says_which():
    """A card that two releases can no longer compile for."""
    settings = {(True, "3.8.0"), (True, "3.9.0")}
    moved = [
        replace(cell, plan=plans.REFUSED) if cell.card == "NVIDIA Thor" and cell.setting in settings else cell
        for cell in today()
    ]
    first, *_ = plans_diff.explained(today(), moved)
    where = r"differs on data center sm_110 at [0-9.]+ to [0-9,.]+ tokens per expert"
    assert re.match(where + r" \(with input scales: Triton 3.8.0, 3.9.0\): kernel decode_w4a16 -> refused", first)


def test_plans_of_another_kernel_are_told_apart():
    """Though they have the same blocks, and lose the same stage."""
    prefill = "kernel=prefill_w4a16 launches=8 BLOCK_M=16 stages=3"
    before = [replace(cell, plan=prefill) for cell in today() if cell.card == "NVIDIA H20"]
    fewer, other = prefill.replace("stages=3", "stages=2"), prefill.replace("16 launches", "4_native launches")
    changed = [replace(cell, plan=fewer if cell.tokens < 128 else other) for cell in before]
    lines = plans_diff.explained(before, changed)
    assert [line.split(": ", 1)[1] for line in lines if line.startswith("differs")] == [
        "stages 3 -> 2",
        "kernel prefill_w4a16 -> prefill_w4a4_native",
    ]


def test_cards_of_one_name_are_refused():
    """The table has them by name."""
    with pytest.raises(ValueError, match="cards are NVIDIA X1, NVIDIA X1, but each should have a name of its own"):
        plans.cells([Gpu("NVIDIA X1", (8, 0)), Gpu("NVIDIA X1", (9, 0))])


def test_a_release_that_cannot_compile_for_a_card_is_recorded():
    refused = {(cell.card, cell.setting.triton) for cell in today() if cell.plan == plans.REFUSED}
    assert refused == {("NVIDIA Thor", "3.6.0")}


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A tree in which recording is allowed, with no plans yet: where they would be."""
    path = tmp_path / "golden" / "plans.json"
    path.parent.mkdir()
    path.with_name(plans_file.SCHEMA).write_bytes(PLANS.with_name(plans_file.SCHEMA).read_bytes())
    monkeypatch.setattr(golden, "ROOT", tmp_path)
    monkeypatch.setattr(golden, "PLANS", path)
    monkeypatch.setattr(provenance, "clean_commit", lambda root: COMMIT)
    monkeypatch.setattr(plans, "cells", today)
    monkeypatch.delenv("CI", raising=False)
    return path


def test_a_change_needs_a_reason_which_is_kept(file, monkeypatch, capsys):
    before = replanned(monkeypatch, GEFORCE_86, steps=from_tokens(GEFORCE_86, 64, 150))
    plans_file.write(file, before, [])
    assert golden.main(["diff"]) == 1
    told = capsys.readouterr().out
    assert told.startswith("differs only on GeForce sm_86 at 102 to 128 tokens per expert: BLOCK_M 32 -> 64")
    assert golden.main(["record", "--plans"]) == 1
    assert "recorded plans change only with --reason TEXT:\ndiffers only on" in capsys.readouterr().err
    assert {cell.key: cell for cell in plans_file.read(file)[0]} == {cell.key: cell for cell in before}
    assert golden.main(["record", "--plans", "--reason", "measured"]) == 0
    assert plans_file.read(file)[1] == [{"commit": COMMIT, "difference": told.splitlines(), "reason": "measured"}]
    capsys.readouterr()
    assert golden.main(["diff"]) == 0
    assert capsys.readouterr().out == f"{len(today())} plans as recorded\n"


@pytest.mark.parametrize("reason", ["", "  ", "\t\n"], ids=repr)
def test_a_blank_reason_is_refused(file, monkeypatch, capsys, reason):
    plans_file.write(file, replanned(monkeypatch, GEFORCE_86, scale_words=None), [])
    before = file.read_bytes()
    assert golden.main(["record", "--plans", "--reason", reason]) == 1
    assert "but should be a text" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_earlier_changes_stay(file, monkeypatch, capsys):
    first = replanned(monkeypatch, GEFORCE_86, scale_words=None)
    second = replanned(monkeypatch, (H20, None), decode_up_to=4)
    plans_file.write(file, today(), [])
    for found, reason in ((first, "one"), (second, "two"), (today(), "three")):
        monkeypatch.setattr(plans, "cells", lambda found=found: found)
        assert golden.main(["record", "--plans", "--reason", reason]) == 0
    assert [change["reason"] for change in plans_file.read(file)[1]] == ["one", "two", "three"]


def test_a_reason_without_a_change_is_refused(file, capsys):
    assert golden.main(["record", "--plans", "--reason", "none"]) == 1
    assert "only where a recorded plan changes" in capsys.readouterr().err
    assert golden.main(["record", "--plans"]) == 0
    assert golden.main(["record", "--plans", "--reason", "again"]) == 1


def test_ci_and_a_dirty_tree_record_no_plans(file, monkeypatch, capsys):
    def dirty(root):
        raise Refused("the tree is dirty")

    monkeypatch.setattr(provenance, "clean_commit", dirty)
    assert golden.main(["record", "--plans"]) == 1
    assert "refused: the tree is dirty" in capsys.readouterr().err
    monkeypatch.setenv("CI", "1")
    assert golden.main(["record", "--plans"]) == 1
    assert "refused: CI is set" in capsys.readouterr().err
    assert not file.exists()


def test_a_file_cut_short_and_one_that_breaks_the_schema_are_refused(file):
    plans_file.write(file, today(), [])
    file.write_text(file.read_text().replace('"count": ', '"count": 1'))
    with pytest.raises(Refused, match=r"plans.json is not as the tool wrote it: it says count 1\d+, but has \d+ runs"):
        plans_file.read(file)
    with pytest.raises(Refused, match="would break its schema"):
        plans_file.write(file, [replace(today()[0], plan="BLOCK_M")], [])


CONFLICT = '<<<<<<< ours\n  "count": 1,\n=======\n  "count": 2,\n>>>>>>> theirs\n'
RUN = '"16384 to 32768: '
DAMAGES = {
    "half-written": (lambda text: text[: len(text) // 2], "it is no JSON"),
    "empty": (lambda text: "", "it is no JSON"),
    "conflict markers": (lambda text: text.replace("{\n", "{\n" + CONFLICT, 1), "it is no JSON"),
    "no such object": (lambda text: "{}", "it has no 'plans'"),
    "a list": (lambda text: "[]", "it is a list, but should be an object"),
    "no number": (lambda text: text.replace('"512: ', '"few: ', 1), "'few: kernel=.*' is no run"),
    "no plan": (lambda text: re.sub('"512: [^"]*"', '"512"', text, count=1), "'512' is no run"),
    "overlapping runs": (
        lambda text: text.replace('"512: ', '"256 to 512: ', 1),
        "each number of tokens once, in order",
    ),
    "a gap": (lambda text: re.sub(' *"512: [^"]*",\n', "", text, count=1), "each number of tokens once, in order"),
    "other settings": (lambda text: text.replace("with input scales", "with scales", 1), "names no settings"),
    "no changes": (lambda text: text.replace('"changes": []', '"changes": 5', 1), "not iterable"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("command", [["diff"], ["record", "--plans"]], ids=" ".join)
def test_a_damaged_file_is_refused_in_one_line(file, damage, command, capsys):
    change, message = DAMAGES[damage]
    damaged = change(written())
    assert damaged != written()
    file.write_text(damaged)
    assert golden.main(command) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"refused: plans.json is not as the tool wrote it: .*{message}", line)
    assert file.read_text() == damaged


def test_a_folder_and_a_missing_file_are_refused(file, capsys):
    assert golden.main(["diff"]) == 1
    assert "refused: plans.json should be a file that can be read: " in capsys.readouterr().err
    file.mkdir()
    for command in (["diff"], ["record", "--plans"]):
        assert golden.main(command) == 1
        assert "refused: plans.json should be a file that can be read: " in capsys.readouterr().err


def test_plans_take_no_option_of_digests(file, capsys):
    for options in (["--case", "x"], ["--out", "x"], ["--engine", "reference"]):
        with pytest.raises(SystemExit):
            golden.main(["record", "--plans", *options])
