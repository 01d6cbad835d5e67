"""What a bisect says at its end, and what it says of two plans. Pure."""

from dataclasses import asdict, replace

import pytest

from nvfp4_suite.ci import bisect_report
from nvfp4_suite.ci.bisect_changes import plan_differences
from nvfp4_suite.ci.bisect_found import DIFFERS, Failure, Found
from nvfp4_suite.ci.bisect_run import Result, Step
from nvfp4_suite.ci.bisect_search import BAD, GOOD, SKIP
from nvfp4_suite.ci.bisect_trial import Point
from nvfp4_suite.contract.gpus import PORTABLE
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.plan import plan_layer

OLD, MIDDLE, NEW = (Point(f"{name}-id", name, f"Make {name}", "A, 2026", f"{name}-tree") for name in ("a", "b", "c"))
WRONG = Found("d" * 64, Failure(DIFFERS, "", "it differs\nhere and there"))
LOST = Found(unusable="ImportError: no tiles")


def result(*first_bad: Point, confirmed: bool = False, verdict: str = SKIP, found: Found = LOST) -> Result:
    steps = [Step("good end, 1 of 1", OLD, GOOD, Found("e" * 64)), Step("step 1 of about 1", MIDDLE, verdict, found)]
    steps.append(Step("check", NEW, BAD, WRONG))
    return Result("case x", "repeat it", list(first_bad), OLD, confirmed, ["a note"], steps)


def test_one_commit_that_is_checked():
    text = bisect_report.text(result(NEW, confirmed=True), {"digest": ["1 -> 2"], "plan": ["gate_up: x", "down: y"]})
    assert text.splitlines() == [
        "FIRST BAD: c  Make c (A, 2026)",
        "  checked  bad there, good before it, at a",
        "  bad is   it differs",
        "  digest   1 -> 2",
        "  plan     gate_up: x",
        "           down: y",
        "  note     a note",
        "  next     git show c -- kernels",
        "           repeat it",
    ]


def test_one_that_is_not_confirmed_is_not_called_the_first():
    text = bisect_report.text(result(NEW), {})
    assert text.startswith("NOT CONFIRMED: c  Make c (A, 2026)\n  note     a note\n")
    assert "checked" not in text


def test_several_with_why_nothing_says_which():
    text = bisect_report.text(result(NEW, MIDDLE), {})
    assert text.splitlines()[:3] == [
        "FIRST BAD: one of 2, between which nothing can be judged:",
        "  c  Make c: bad",
        "  b  Make b: ImportError: no tiles",
    ]


@pytest.mark.parametrize(
    ("given", "verdict"),
    [(result(NEW, confirmed=True), "found"), (result(NEW), "not confirmed"), (result(NEW, MIDDLE), "among")],
)
def test_the_document_has_the_verdict_and_every_step(given, verdict):
    told = bisect_report.document(given, {}, ["--case", "x"])
    assert told["verdict"] == verdict
    assert [step["verdict"] for step in told["steps"]] == [GOOD, SKIP, BAD]
    assert told["steps"][2]["found"]["failure"]["text"] == "it differs\nhere and there"
    assert told["first_bad"][0] == {"id": "c-id", "name": "c", "subject": "Make c"}


def test_a_document_is_written_whole(tmp_path):
    path = bisect_report.write(tmp_path / "new", {"verdict": "refused"})
    assert [one.name for one in path.parent.iterdir()] == ["bisect.json"]


def launches(tokens: int) -> dict[str, dict]:
    plan = plan_layer(PORTABLE, LayerShape(4, 2, 64, 64), tokens, kernel="prefill")
    return {launch.stage: asdict(launch) for launch in plan.launches}


def test_plans_differ_by_name():
    few, many = launches(1), launches(512)
    assert plan_differences(few, few) == []
    assert plan_differences(few, many) == [
        "list_blocks: BLOCK_M 16 -> 64",
        "gate_up: BLOCK_M 16 -> 64",
        "down: BLOCK_M 16 -> 64",
    ]


def test_a_launch_that_comes_and_goes_and_one_with_other_arguments():
    before = launches(1)
    now = {stage: launch for stage, launch in before.items() if stage != "activation"}
    now["new"] = before["activation"]
    now["down"] = replace_argument(before["down"])
    assert plan_differences(before, now) == [
        "activation: no longer launched",
        f"down: N i32 -> i64, divisible {' '.join(before['down']['divisible'])} -> ",
        "new: launched now",
    ]


def replace_argument(launch: dict) -> dict:
    arguments = [("N", "i64") if name == "N" else (name, kind) for name, kind in launch["arguments"]]
    return launch | {"arguments": arguments, "divisible": ()}


def test_a_step_is_one_line():
    step = Step("step 1 of about 5", MIDDLE, SKIP, replace(LOST, seconds=1.25))
    assert str(step).startswith("step 1 of about 5   b             Make b ")
    assert str(step).endswith("skip     1.2 s  ImportError: no tiles")
