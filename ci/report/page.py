"""A report as one HTML page that needs nothing beside itself: no network, no script. Pure, apart from its template.

All text on it goes through `printable` and is escaped, whoever wrote it; a policy in the page forbids scripts and
everything that is fetched.
"""

from collections import Counter
from datetime import datetime
from itertools import groupby
from pathlib import Path

import jinja2
from markupsafe import Markup

from . import bench, evidence, picture
from .failures import Failure
from .report import Report
from .text import count, cut, printable

HERE = Path(__file__).resolve().parent
MOST = 200  # failures that are shown; the others are named
OPEN = 3  # of a family; the others are folded
LINES, ALL_LINES = 60, 400  # of an explanation, and of all that was written of a failure


def page(report: Report, made: datetime) -> str:
    """The page, made at that time."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cut": cut, "count": _counted, "compared": compared, "duration": duration}
    return environment.get_template("page.html").render(
        report=report,
        made=made,
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        picture=picture.svg,
        speed=speed(report.rows),
        folded=folded(report.failures),
        places=places(report.failures),
        kinds=kinds(report.failures),
        known=known(report.matrix),
        states={name: (sign, evidence.MEANING[name]) for name, sign in evidence.STATES.items()},
        most=MOST,
        lines=LINES,
        all_lines=ALL_LINES,
    )


_NAMES = {"session": "run that is red by itself", "tests": "test", "golden": "digest", "gates": "gate"}


def kinds(failures: tuple[Failure, ...]) -> str:
    """As "1 run that is red by itself, 12 tests, 3 gates"."""
    counts = Counter(one.kind for one in failures)
    plural = {"session": "runs that are red by themselves"}
    return ", ".join(count(counts[kind], name, plural.get(kind)) for kind, name in _NAMES.items() if counts[kind])


def known(matrix: evidence.Matrix) -> str:
    """As "440 places: 3 ran, 40 compiled, 397 unknown"; those that are not meant are left out."""
    states = {state: number for state, number in matrix.states().items() if state != "not meant"}
    named = [f"{states[state]:,} {state}" for state in evidence.STATES if states.get(state)]
    return f"{count(sum(states.values()), 'place')}: {', '.join(named)}"


def folded(failures: tuple[Failure, ...]) -> set[str]:
    """The anchors of those that are behind OPEN others of their family."""
    seen: Counter[tuple[str, str]] = Counter()
    found = set()
    for one in failures:
        seen[one.kind, one.family] += 1
        if seen[one.kind, one.family] > OPEN:
            found.add(one.anchor)
    return found


def places(failures: tuple[Failure, ...]) -> dict[str, str]:
    """By the name of a run the anchor of its first failure."""
    return {one.run: failure.anchor for failure in reversed(failures) for one in failure.occurrences}


def _finalized(value: object) -> object:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _counted(number: int, one: str, more: str | None = None) -> str:
    return count(number, one, more)


def duration(seconds: float) -> str:
    """As "0.4 s", "42 s", "7 min" or "1 h 20 min"."""
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def compared(ratio: float) -> str:
    """As "2.0 % slower" for a ratio of 1.02, "2.0 % faster" for 0.98."""
    return f"{abs(ratio - 1) * 100:.1f} % {'slower' if ratio > 1 else 'faster'}" if round(ratio, 3) != 1 else "as fast"


def speed(rows: tuple[bench.Row, ...]) -> list[tuple[str, list[bench.Row]]]:
    """(GPU and Triton, its rows), of each first what is slowest against its baseline."""
    ordered = sorted(rows, key=lambda row: (row.gpu, row.triton, -(row.ratio or 0), row.kernel, row.shape, row.tokens))
    groups = groupby(ordered, key=lambda row: f"{row.gpu}, Triton {row.triton}")
    return [(name, list(same)) for name, same in groups]
