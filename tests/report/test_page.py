"""The page: what it says and how much of it, that links lead somewhere, and that nobody else's markup is in it."""

import re

import pytest

from nvfp4_suite.ci.report import page
from nvfp4_suite.ci.report.bench import Row

from . import fleet, shown
from .fleet import H200, Result, failing
from .shown import Page


@pytest.fixture(scope="module")
def night(tmp_path_factory) -> Page:
    return shown.shown(fleet.write(tmp_path_factory.mktemp("night")), "b200-3.8.0")


def test_the_page_starts_with_what_is_wrong_and_what_ran(night):
    (head,) = night.all("h1")
    assert head.text == "6 of 9 runs are red: 9 distinct failures, 17 UNTESTED" and "red" in head.classes
    assert "Ran on 2 x NVIDIA H200 (sm_90), NVIDIA GeForce RTX 5090 (sm_120)." in night.source
    assert "made 2026-12-01 03:00 UTC" in night.source


def test_every_run_has_a_line_with_its_verdict(night):
    words = {one.text: one.classes for one in night.elements if "verdict" in one.classes}
    assert words == {
        "no result": ["verdict", "bad"],
        "failed": ["verdict", "bad"],
        "untested": ["verdict", "bad"],
        "emulated": ["verdict", "other"],
        "timed": ["verdict", "other"],
        "ran": ["verdict", "ran"],
    }
    assert [one.text for one in night.all("span", "name")][:3] == ["b200-3.8.0", "cpu-3.8.0", "gates"]
    assert [one.text for one in night.all("td", "bad")] == ["3", "6", "17", "3"]  # the last one is the compilers'


def test_a_failure_has_its_words_its_commands_and_its_picture(night):
    (failure,) = [one for one in night.all("article") if fleet.CASE in one.text]
    assert "all 18 wrong rows are tokens of expert 3" in failure.text
    assert f"nox -s gpu-tests -- --case {fleet.CASE}" in failure.text and "nvfp4_suite replay" in failure.text
    assert "1,024 of 8,976 elements are wrong" in failure.text
    assert len(night.all("svg", "where")) == 1


def test_what_fails_alike_is_folded_but_for_the_first(night):
    articles = [one for one in night.all("article") if "test_kernel_equals_the_reference" in one.text]
    summaries = [one.text for one in night.elements if one.tag == "summary" and "test_kernel_equals" in one.text]
    assert len(articles) == 6 and len(summaries) == 3
    assert "random-4" in summaries[-1] and "4 is wrong" in summaries[-1]


def test_the_matrix_says_in_words_what_its_signs_mean(night):
    cells = {one.attributes["title"].partition(";")[0]: one for one in night.all("td") if "title" in one.attributes}
    first = cells["sm_90, Triton 3.8.0: failed"]
    assert first.classes == ["failed"] and first.text == "✕failed: 6 tests failed"
    assert len(night.all("table", "matrix")) == 10
    (known,) = [one.text for one in night.all("p", "note") if "places" in one.text]
    assert "untested" in known and "compiled" in known and "unknown" in known
    assert not night.all("td", "ran")[0].text.startswith("e")


def test_speed_goldens_and_files_are_told(night):
    speed = night.inside("speed")
    assert "5.0 % slower recorded at 2b238f9" in speed and "1.0 % faster" in speed and "71 %" in speed
    assert speed.index("5.0 % slower") < speed.index("3.0 % slower") < speed.index("1.0 % faster")
    assert "digests of order-free cases, confirmed by: interpreter" in night.inside("goldens")
    files = night.inside("files")
    for part in ("gates/cut-short.xml", "no XML, or cut short", "gates/core.1234", "gates/summary.md"):
        assert part in files


def test_what_is_not_there_is_said(tmp_path):
    fleet.write_session_of(tmp_path / "run", [Result("test_one")])
    found = shown.shown(tmp_path)
    (head,) = found.all("h1")
    assert (head.text, head.classes) == ("Nothing is red in 1 run", ["calm"])
    assert "Nothing ran on a GPU." in found.source
    assert "No benchmark ran" in found.inside("speed") and "No compile gates ran." in found.inside("compiled")
    assert "Every file was read." in found.inside("files") and "None." in found.inside("failures")


@pytest.mark.parametrize("more", [{"whole": False}, {"tier": "ci"}, {"engine": "interpreter"}])
def test_a_line_is_green_for_a_whole_session_on_a_gpu_alone(tmp_path, more):
    results = [Result("test_one"), Result("test_two", skip="no tool")][: 1 + ("whole" in more)]
    fleet.write_session_of(tmp_path / "run", results, H200)
    assert len(shown.shown(tmp_path).all("span", "verdict", "ran")) == ("whole" not in more)
    told = {"engine": "gpu"} | more
    fleet.write_session(tmp_path / "run", told.pop("engine"), **told)
    assert shown.shown(tmp_path).all("span", "verdict", "ran") == []


def test_failures_that_were_expected_are_told_with_their_reasons(tmp_path):
    gated = fleet.gate_results((11, 0))
    fleet.write_junit(tmp_path / "run" / "gates.xml", gated, "compile-gates")
    text = (tmp_path / "run" / "gates.xml").read_text()
    known = '<skipped type="expected" message="its assembler does not know sm_110"/></testcase>'
    (tmp_path / "run" / "gates.xml").write_text(text.replace("</testcase>", known))
    assert (
        f"Known: its assembler does not know sm_110 ({len(gated)} results of run: gates)"
        in shown.shown(tmp_path).source
    )


@pytest.mark.parametrize(("word", "red"), [("success", 0), ("failure", 1), ("cancelled", 1), ("", 1)])
def test_a_job_that_failed_without_a_word_is_red(tmp_path, word, red):
    fleet.write_session_of(tmp_path / "job" / "run", [Result("test_one")])
    (tmp_path / "job" / "status.txt").write_text(f"{word}\n")
    told = [one.occurrences[0].explanation for one in shown.made(tmp_path).failures]
    assert told == [f"JOB NOT GREEN: it says {word or 'nothing'!r}, but nothing that it left says why"] * red
    fleet.write_session_of(tmp_path / "job" / "run", [Result("test_one", failure="no")], exit=1)
    assert [one.kind for one in shown.made(tmp_path).failures] == ["tests"], "its test says why"


def test_an_empty_folder_is_red(tmp_path):
    (head,) = shown.shown(tmp_path).all("h1")
    assert head.text == "1 of 1 run is red" and head.classes == ["red"]


def test_every_link_leads_to_a_place_in_the_page(night):
    links = [one.attributes["href"] for one in night.elements if "href" in one.attributes]
    assert len(links) > 20 and all(link.startswith("#") for link in links)
    assert {link[1:] for link in links} <= set(night.ids)
    assert set(night.ids.values()) == {1}
    named = [one.attributes[name] for one in night.elements for name in ("aria-labelledby",) if name in one.attributes]
    assert set(named) <= set(night.ids)


def test_the_page_needs_nothing_beside_itself(night):
    """No script, nothing that is fetched: and a policy that would stop it."""
    tags = {one.tag for one in night.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "form", "base", "audio", "video", "use"}
    assert not [one for one in night.elements if any(name.startswith("on") or name == "src" for name in one.attributes)]
    (style,) = night.all("style")
    assert "@import" not in style.text and "url(" not in style.text
    (policy,) = [one for one in night.all("meta") if "http-equiv" in one.attributes]
    assert policy.attributes["content"] == "default-src 'none'; style-src 'unsafe-inline'"
    assert re.findall(r"https?://", night.source) == []


EVIL = """</pre></style><script>alert(1)</script><img src=x onerror="alert(2)"> "' onload='x' """
EVIL += "{{ 7 * 7 }} {% raw %} &lt; \u202e"


def write_evil(root) -> None:
    """The same hostile text wherever a text can come from."""
    case = "orderfree-evil" + EVIL
    told = Result(f"test_it[{EVIL}]", EVIL, EVIL, group=EVIL, text=f"E   {EVIL}\nE   repro  {EVIL}")
    run = root / "run"
    gpu = (EVIL, (9, 0))
    fleet.write_environment(run, gpu, triton=EVIL, torch=EVIL, driver=EVIL, assembler=EVIL, commit=EVIL)
    fleet.write_session(run, "gpu", EVIL, f"UNTESTED: {EVIL}", f"UNTESTED: {case} by evil<script>")
    fleet.write_junit(run / "junit.xml", [told])
    fleet.write_bundle(run, told, fleet.wrong_tile(), kernel=EVIL)
    fleet.write_bundle(run, Result(EVIL, EVIL, EVIL), None)
    fleet.write_json(run / "sanitizer.json", {"tool": EVIL, "problems": [EVIL]})
    gate = Result(EVIL, failure=EVIL, text=EVIL, group=f"compile-gates.triton-{EVIL}.{EVIL}")
    gate.properties = {"function": EVIL, "assembler": EVIL, "facts": f"instructions={EVIL} registers={EVIL}"}
    fleet.write_junit(run / "gates<script>.xml", [gate], "compile-gates")
    fleet.write_junit(run / "golden.xml", [gate], "golden", engine=EVIL, device=EVIL, triton=EVIL)
    texts = {name: EVIL for name in ("kernel", "gpu", "triton", "shape", "baseline", "digest")}
    (run / "bench.jsonl").write_text(fleet.json.dumps(fleet.ROW | texts) + "\n" + fleet.json.dumps({"kernel": [EVIL]}))
    for name in ("<script>alert(1)<script>.bin", "<script>.md", "<img src=x onerror=alert(1)>.xml"):
        (run / name).write_text(EVIL)


def test_hostile_texts_are_texts(tmp_path):
    write_evil(tmp_path)
    golden = tmp_path.with_name("golden")
    change = {"commit": EVIL, "difference": [EVIL], "reason": EVIL}
    fleet.write_json(golden / "codegen" / "3.8.0.json", {"assemblers": {}, "changes": [change], "count": 0})
    found = Page(page.page(shown.made(tmp_path, EVIL), shown.NIGHT))
    assert not found.all("script") and not found.all("img")
    assert {one.tag for one in found.elements if "style" in one.above} == set()
    assert [one for one in found.elements if any(name.startswith("on") for name in one.attributes)] == []
    assert found.source.count("<style>") == 1 and "<script" not in found.source and "\u202e" not in found.source
    shown_text = "".join(one.text for one in found.all("main"))
    assert shown_text.count("<script>alert(1)</script>") > 20, "it is to be seen as what it is"
    assert "{{ 7 * 7 }}" in shown_text and "&lt;" in shown_text
    assert set(found.ids.values()) == {1}


def test_more_failures_than_a_reader_can_take_are_named(tmp_path, monkeypatch):
    results = [Result(f"test_{place}", failure=f"{place} is wrong") for place in range(7)]
    fleet.write_session_of(tmp_path / "run", results, exit=1)
    monkeypatch.setattr(page, "MOST", 4)
    found = shown.shown(tmp_path)
    assert len(found.all("article")) == 4
    (names,) = found.all("ul", "names")
    assert [f"test_{place} {place} is wrong" in names.text for place in range(7)] == [False] * 4 + [True] * 3
    assert "3 more, by name" in found.source and {"f5", "f6", "f7"} <= set(found.ids)


def test_a_long_text_is_cut_and_says_so(tmp_path):
    told = Result("test_long", failure="x", text="\n".join(f"E   line {place} {'y' * 500}" for place in range(1000)))
    fleet.write_session_of(tmp_path / "run", [told], exit=1)
    found = shown.shown(tmp_path)
    first, whole = found.all("pre")[:2]
    assert (
        f"... ({1000 - page.LINES} more lines)" in first.text
        and f"... ({1000 - page.ALL_LINES} more lines)" in whole.text
    )
    assert len(found.source) < 400_000


def test_pictures_that_are_everywhere_leave_the_page_small(tmp_path):
    """Twenty bundles a process, each with a grid in which every second cell is wrong."""
    grid = {
        "shape": [48, 96],
        "cell": [1, 1],
        "wrong": [[(row + column) % 2 for column in range(96)] for row in range(48)],
    }
    told = [failing(case=f"case-{place}") for place in range(20)]
    fleet.write_session_of(tmp_path / "run", told, H200, exit=1)
    for one in told:
        fleet.write_bundle(tmp_path / "run", one, grid)
    found = shown.shown(tmp_path)
    assert len(found.all("svg", "where")) == 20 and len(found.source) < 3_000_000


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.04, "0.0 s"), (9.9, "9.9 s"), (42.4, "42 s"), (100, "2 min"), (3590, "1 h 0 min"), (7260, "2 h 1 min")],
)
def test_durations_are_told_in_their_own_units(seconds, told):
    assert page.duration(seconds) == told


def test_speeds_are_told_against_their_baseline_the_slowest_first():
    assert [page.compared(ratio) for ratio in (1.02, 0.5, 1.0, 1.0004)] == [
        "2.0 % slower",
        "50.0 % faster",
        "as fast",
        "as fast",
    ]
    rows = [
        Row(**fleet.ROW | {"gpu": gpu, "ratio": ratio})
        for gpu, ratio in (("B", 1.0), ("A", 0.9), ("A", None), ("A", 1.1))
    ]
    grouped = [(name, [row.ratio for row in same]) for name, same in page.speed(tuple(rows))]
    assert grouped == [("A, Triton 3.8.0", [1.1, 0.9, None]), ("B, Triton 3.8.0", [1.0])]
