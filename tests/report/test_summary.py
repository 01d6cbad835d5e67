"""The summary in Markdown: what is red first, capped, and nothing in it is markup of others."""

import re

import pytest

from nvfp4_suite.ci.report import summary

from . import fleet, shown
from .fleet import H200, Result
from .test_page import EVIL, write_evil


def told(root, *expected) -> str:
    return summary.summary(shown.made(root, *expected))


def test_what_is_red_comes_first_and_then_the_runs(tmp_path):
    text = told(fleet.write(tmp_path))
    head = "## 5 of 8 runs are red&#58; 9 distinct failures&#44; 17 UNTESTED\n"
    assert text.startswith(head)
    assert (
        text.index("UNTESTED: case-0 by prefill_w4a4")
        < text.index("all 18 wrong rows")
        < text.index("| run | verdict |")
    )
    assert f"$ nox -s gpu-tests -- --case {fleet.CASE}" in text
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert len(rows) == 8 and [row.count("|") for row in rows] == [7] * 8
    assert [("**" in row) for row in rows] == [True] * 5 + [False] * 3


def test_a_night_without_failures_is_short(tmp_path):
    fleet.write_session_of(tmp_path / "run", [Result("test_one")])
    text = told(tmp_path)
    assert text.startswith("## Nothing is red in 1 run\n\nNothing ran on a GPU&#46;\n\n| run |") and len(text) < 400


def test_what_does_not_fit_is_counted(tmp_path):
    results = [Result(f"test_{place}", failure="z" * 10_000 + "\n" * 100 + "end") for place in range(1000)]
    fleet.write_session_of(tmp_path / "run", results, H200, exit=1)
    text = told(tmp_path)
    assert text.count("<details>") == summary.MOST and "... and 970 more failures: see the page" in text
    assert len(text.encode()) < 60_000


def test_the_longest_summary_is_below_what_github_takes(tmp_path):
    """Every text as long as it may be, and of signs that take the most room."""
    long = "\N{HUNDRED POINTS SYMBOL}" * 2000
    results = [Result(f"{place}{long}", failure=f"{long}\n" * 30, group=long) for place in range(30)]
    for place in range(120):
        fleet.write_environment(tmp_path / f"{place:03}{long[:50]}", (long, (9, 0)))
    text = told(tmp_path)
    assert 100_000 < len(text.encode()) <= summary.BYTES and "and 20 more runs" in text
    fleet.write_junit(tmp_path / "run" / "junit.xml", results)
    assert 100_000 < len(told(tmp_path).encode()) <= summary.BYTES


@pytest.mark.parametrize(
    "text",
    [EVIL, "[x](javascript:alert(1))", "**b** `c` ~d~ |e|", "# h", "a\n\n# b", "![](http://x)", "@someone #12", "_i_"],
)
def test_no_sign_has_a_meaning_on_a_line(text):
    found = summary.inline(text)
    assert re.fullmatch(r"(?:[A-Za-z0-9 ]|&#\d+;)*", found)
    assert "\n" not in found


def test_a_block_cannot_be_left(tmp_path):
    found = summary.block("</pre>\n\n<script>\n```\n# head\n&lt;")
    assert found == "<pre>\n&lt;/pre&gt;\n\n&lt;script&gt;\n```\n# head\n&amp;lt;\n</pre>"


def test_hostile_texts_are_texts(tmp_path):
    write_evil(tmp_path)
    text = told(tmp_path, EVIL)
    outside = re.sub(r"<pre>\n.*?\n</pre>", "", text, flags=re.DOTALL)
    assert set(re.findall(r"<[^>]*>", text)) == {
        "<details>",
        "</details>",
        "<summary>",
        "</summary>",
        "<b>",
        "</b>",
        "<pre>",
        "</pre>",
    }
    left = re.sub(r"</?(?:details|summary|b)>|&#\d+;", "", outside)
    assert not re.search(r"[`\[\]<>_~@!]", left) and "script" in left
