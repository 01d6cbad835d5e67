"""A report as Markdown for a step's summary: what is red first, capped, everything escaped. Pure."""

import html
import re

from .failures import Failure
from .report import Report
from .text import count, cut, printable
from .verdicts import Verdict

MOST, RUNS = 30, 100  # failures and runs that are shown
NAME = 100  # letters of a name
LINES, COLUMNS = 25, 160  # of an explanation
BYTES = 500_000  # GitHub refuses a summary of more than 1 MiB
_MEANS = re.compile(r"[^A-Za-z0-9 ]")


def summary(report: Report) -> str:
    """The whole of it, at most BYTES. What does not fit is counted."""
    return next(text for most in (MOST, MOST // 4, 0) if _fits(text := _text(report, most)))


def _fits(text: str) -> bool:
    return len(text.encode()) <= BYTES


def _text(report: Report, most: int) -> str:
    parts = [f"## {inline(report.headline)}", inline(report.hardware), _failures(report, most), _runs(report)]
    return "\n\n".join(filter(None, parts)) + "\n"


def inline(text: str, most: int = 2 * NAME) -> str:
    """`text` on one line, in which nothing has a meaning in Markdown or HTML: each sign is written as a number."""
    line = cut(text.replace("\n", " "), 1, most)
    return _MEANS.sub(lambda match: f"&#{ord(match[0])};", line)


def block(text: str) -> str:
    """`text` as it is, in <pre>: no Markdown is read in it, and no end of it can be in it."""
    return f"<pre>\n{html.escape(printable(text))}\n</pre>"


def _failures(report: Report, most: int) -> str:
    shown = [_failure(one) for one in report.failures[:most]]
    more = len(report.failures) - len(shown)
    return "\n\n".join([*shown, *([f"... and {count(more, 'more failure')}: see the page"] if more > 0 else [])])


def _failure(failure: Failure) -> str:
    first, places = failure.occurrences[0], list(dict.fromkeys(one.run for one in failure.occurrences))
    places = [] if failure.kind == "session" else places
    where = ", ".join(places[:5]) + (f" and {len(places) - 5} more" if len(places) > 5 else "")
    told = cut(first.explanation or first.headline, LINES, COLUMNS)
    repro = "".join(f"\n$ {cut(command, 1)}" for command in first.repro)
    new = "NEW " if failure.new else ""
    head = f"<summary>{new}<b>{inline(failure.title)}</b> {inline(where)}</summary>"
    return f"<details>{head}\n\n{block(told + repro)}\n</details>"


def _runs(report: Report) -> str:
    if not report.verdicts:
        return ""
    head = ["| run | verdict | on | passed | failed | untested |", "|---|---|---|--:|--:|--:|"]
    ordered = sorted(report.verdicts, key=lambda one: not one.red)
    more = len(ordered) - RUNS
    return "\n".join(
        [*head, *map(_row, ordered[:RUNS]), *([f"\n... and {count(more, 'more run')}"] if more > 0 else [])]
    )


def _row(one: Verdict) -> str:
    verdict = f"**{inline(one.word)}**" if one.red else inline(one.word)
    on = inline(" · ".join(filter(None, [one.on, *one.versions[:1]])), NAME)
    return f"| {inline(one.run.name, NAME)} | {verdict} | {on} | {one.passed:,} | {one.failed:,} | {one.untested:,} |"
