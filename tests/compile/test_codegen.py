"""golden/codegen/: whole, of exactly the gates that a run takes, refused where damaged, and recorded by the rules.

A plan that changed without a new recording is red here, without compiling anything.
"""

import json
from argparse import Namespace
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from nvfp4_suite.ci import codegen, compile_gates, gate_choice, gate_golden, gate_run, gates, golden_file
from nvfp4_suite.ci.gate_known import known_failure
from nvfp4_suite.ci.gate_report import Judged
from nvfp4_suite.ci.golden_file import Refused
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.releases import TRITONS

from .trees import ROOT

CODEGEN = ROOT / "golden" / "codegen"
LAUNCH = plan_layer(Gpu("", (9, 0)), LayerShape(256, 8, 2048, 512), 1).launch("sum_routes")
COMMIT = "c" * 40
CHANGE = {"commit": COMMIT, "difference": ["sm_121-other: registers 1 -> 2"], "reason": "why"}

each_release = pytest.mark.parametrize("triton", TRITONS)


def owed(triton: str) -> set[str]:
    """The ids of the gates that a run takes, but for those that are known not to compile."""
    found = set()
    for gate in gate_choice.chosen(triton):
        known = known_failure(*gate, triton)
        if known is None or known.compiles:
            found.add(gates.launch_id(*gate))
    return found


@each_release
def test_exactly_what_a_run_takes_is_recorded(triton):
    recorded = Counter(name for _, name in codegen.read(CODEGEN / f"{triton}.json")[0])
    how = f"nox -s compile-gates -- --triton {triton} --record"
    missing, more = sorted(owed(triton) - recorded.keys()), sorted(recorded.keys() - owed(triton))
    assert not missing, f"a plan has launches that are not recorded, which `{how}` does: {missing}"
    assert not more, f"what is recorded is of no plan any more; `{how}` removes it: {more}"
    assert set(recorded.values()) == {1}, "a launch is recorded with two assemblers"


@each_release
def test_a_file_is_as_the_tool_writes_it(triton):
    """In its order, one launch a line, by its schema, and small enough to read its differences."""
    path = CODEGEN / f"{triton}.json"
    text, held = path.read_text(encoding="utf-8"), golden_file.load(path)
    assert text == golden_file.text(held)
    jsonschema.validate(held, json.loads((CODEGEN / codegen.SCHEMA).read_text()))
    assert sum(line.startswith('   "sm_') for line in text.splitlines()) == held["count"] > 300
    assert len(text) < 2_000_000


@each_release
def test_a_launch_stands_with_facts_of_its_own_architecture(triton):
    for (_, name), line in codegen.read(CODEGEN / f"{triton}.json")[0].items():
        assert f" target={name.split('-')[0]}" in line


def test_there_is_a_file_for_each_release_and_no_other():
    assert sorted(path.name for path in CODEGEN.glob("*.json")) == sorted(
        [*(f"{one}.json" for one in TRITONS), codegen.SCHEMA]
    )


@pytest.fixture(scope="module")
def passing() -> list[Judged]:
    found = gate_run.run([((9, 0), LAUNCH), ((12, 0), LAUNCH)], gate_run.Settings(1))
    return [compile_gates.judge(each, "3.8.0") for each in found]


@pytest.fixture
def file(passing, monkeypatch, tmp_path) -> Path:
    """The recording of `passing`, in a tree in which recording is allowed."""
    (tmp_path / codegen.SCHEMA).write_text((CODEGEN / codegen.SCHEMA).read_text())
    lines = gate_golden._lines(passing)
    monkeypatch.setattr(gate_golden, "CODEGEN", tmp_path)
    monkeypatch.setattr(gate_golden, "_owed", lambda triton: {name for _, name in lines})
    monkeypatch.setattr(gate_golden.provenance, "clean_commit", lambda root: COMMIT)
    monkeypatch.delenv("CI", raising=False)
    codegen.write(tmp_path / "3.8.0.json", "3.8.0", lines, [])
    return tmp_path / "3.8.0.json"


def edited(old: str, new: str):
    return lambda text: text.replace(old, new, 1)


def without_a_line(text: str) -> str:
    lines = text.splitlines(keepends=True)
    (place,) = (place for place, line in enumerate(lines) if '"sm_120-' in line)
    return "".join(lines[:place] + lines[place + 1 :])


def twice(text: str) -> str:
    (line,) = (line for line in text.splitlines(keepends=True) if '"sm_120-' in line)
    return text.replace(line, line.rstrip(",\n") + ",\n" + line)


DAMAGE = {
    "truncated": (lambda text: text[:-40], "it is no JSON"),
    "empty": (lambda text: "", "it is no JSON"),
    "a merge conflict": (lambda text: "<<<<<<< HEAD\n" + text, "it is no JSON"),
    "a list": (lambda text: "[]", "it is a list, but should be an object"),
    "an edited fact": (
        edited('"registers": "', '"registers": "1'),
        "what it says does not have its check, so somebody edited it",
    ),
    "an edited name": (edited('"sm_90-', '"sm_86-'), "what it says does not have its check, so somebody edited it"),
    "a line missing": (without_a_line, "it says count 3, but has 2 launches"),
    "and its count": (
        lambda text: edited('"count": 3', '"count": 2')(without_a_line(text)),
        "what it says does not have its check, so somebody edited it",
    ),
    "a line twice": (twice, "it has sm_120-sum_routes-bf16-block512-4w-1s twice; keep the line that is right"),
    "no check": (edited('"check"', '"chick"'), "it has no 'check'"),
    "an edited reason": (edited('"reason": "why', '"reason": "because'), "what it says does not have its check"),
    "another form": (edited('"assemblers": {', '"assemblers": 1, "more": {'), "its launches are no objects"),
    "another Triton's": (edited('"triton": "3.8.0"', '"triton": "3.9.0"'), "it is of Triton 3.9.0"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_refused_before_anything_is_compiled(name, file, capsys):
    damage, message = DAMAGE[name]
    (tool, _), line = max(codegen.read(file)[0].items())
    codegen.write(file, "3.8.0", codegen.read(file)[0] | {(tool, "sm_121-other"): line}, [CHANGE])
    text = file.read_text()
    assert damage(text) != text
    file.write_text(damage(text))
    assert compile_gates.main(["--arch", "90", "--launch", "sum_routes-*", "--no-cache"]) == 1
    out, err = capsys.readouterr()
    assert err.startswith(f"refused: 3.8.0.json is not as the tool wrote it: {message}") and out == ""
    assert err.endswith("take it from git again\n")


def test_a_clean_tree_is_asked_for_before_anything_is_compiled(file, monkeypatch, capsys):
    monkeypatch.setenv("CI", "true")
    assert compile_gates.main(["--record", "--arch", "90", "--launch", "sum_routes-*", "--no-cache"]) == 1
    out, err = capsys.readouterr()
    assert err == "refused: CI is set to 'true', but goldens are recorded by hand only\n" and out == ""


def test_what_is_as_recorded_passes_and_nothing_is_said(file, passing):
    assert [each.verdict for each in gate_golden.against_record("3.8.0", passing)] == ["passed"] * 2
    assert gate_golden.unrecorded(passing) == []


def changed(lines: codegen.Lines, part: str) -> codegen.Lines:
    """`lines`, where that of `part` has more registers."""
    return {key: line.replace("registers=", "registers=1") if part in key[1] else line for key, line in lines.items()}


@pytest.mark.parametrize("verdict", ["passed", "known"])
def test_facts_that_changed_since_they_were_recorded_are_red(file, passing, verdict):
    """Also those of a known failure."""
    lines = gate_golden._lines(passing)
    codegen.write(file, "3.8.0", changed({key: lines[key] for key in lines if "sm_90" in key[1]}, "sm_90"), [])
    judged = [replace(each, verdict=verdict) for each in passing]
    found, other = gate_golden.against_record("3.8.0", judged)
    assert (found.verdict, other.verdict) == ("changed", verdict)
    registers = found.outcome.facts.registers
    assert found.error == f"sm_90-{found.id}: registers 1{registers} -> {registers}"
    assert "golden/codegen/ has nothing of 1 gates of Triton 3.8.0" in gate_golden.unrecorded(passing)[0]


def record(judged: list[Judged], reason: str | None = None) -> list[str]:
    return gate_golden.record(judged, Namespace(reason=reason))


def of(path: Path) -> tuple[codegen.Lines, list[dict]]:
    return codegen.read(path)


def test_a_first_recording_keeps_its_reason(file, passing):
    file.unlink()
    assert record(passing, "first recording") == ["2 gates recorded in golden/codegen/3.8.0.json"]
    lines, changes = of(file)
    assert lines == gate_golden._lines(passing)
    first = {"commit": COMMIT, "difference": ["2 launches for the first time"], "reason": "first recording"}
    assert changes == [first]


def test_new_launches_need_no_reason(file, passing):
    file.unlink()
    record(passing[:1])
    record(passing)
    assert of(file) == (gate_golden._lines(passing), [])


def test_recorded_facts_change_with_a_reason_only_which_is_kept(file, passing):
    codegen.write(file, "3.8.0", changed(gate_golden._lines(passing), "sm_120"), [])
    before = file.read_bytes()
    with pytest.raises(Refused, match=r"only with --reason TEXT:\nsm_120-.*: registers 1\d+ -> \d+$"):
        record(passing)
    with pytest.raises(Refused, match="only with --reason TEXT"):
        record(passing, " ")
    assert file.read_bytes() == before
    record(passing, "why")
    lines, (change,) = of(file)
    assert lines == gate_golden._lines(passing)
    assert (change["reason"], change["commit"], len(change["difference"])) == ("why", COMMIT, 1)


def test_a_reason_for_no_change_is_refused(file, passing):
    with pytest.raises(Refused, match="--reason is 'why', but should be given only where something changes"):
        record(passing, "why")


def test_several_releases_are_recorded_or_none(file, passing):
    """A reason may be that of one of them."""
    older = [replace(each, triton="3.7.1") for each in passing]
    codegen.write(file, "3.8.0", changed(gate_golden._lines(passing), "sm_120"), [])
    with pytest.raises(Refused, match="only with --reason TEXT"):
        record([*older, *passing])
    assert not (file.parent / "3.7.1.json").exists()
    record(older)
    record([*older, *passing], "why")
    assert [len(of(file.parent / f"{triton}.json")[1]) for triton in ("3.7.1", "3.8.0")] == [0, 1]


def test_what_no_run_takes_is_not_recorded_and_goes(file, passing, monkeypatch):
    monkeypatch.setattr(gate_golden, "_owed", lambda triton: {f"sm_90-{passing[0].id}"})
    record(passing)
    assert [name for _, name in of(file)[0]] == [f"sm_90-{passing[0].id}"]


def test_red_gates_are_not_recorded(file, passing):
    before = file.read_bytes()
    with pytest.raises(Refused, match="1 gates are red, but all should hold"):
        record([passing[0], replace(passing[1], verdict="failed")])
    assert file.read_bytes() == before
