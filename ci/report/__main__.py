"""Makes a report of any number of runs: one HTML page, and a summary in Markdown.

    python -m nvfp4_suite.ci.report RUNS... --out report.html --summary summary.md

RUNS are folders of results, at any depth; see reading.py. Exit code 0: the report was written. 1: it was, and with
--check something in it is red. 2: wrong arguments.
"""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from .. import files
from . import goldens, page, reading, report, summary

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    expected = [name for names in options.expect for name in names.split(",") if name]
    try:
        before = reading.read([options.before]) if options.before else None
        found = report.make(reading.read(options.runs, expected), goldens.read(options.golden), before)
    except ValueError as error:
        parser.error(str(error))
    files.write_text(options.out, page.page(found, datetime.now(UTC)))
    if options.summary:
        files.write_text(options.summary, summary.summary(found))
    print(f"{found.headline}\n{found.hardware}\n{options.out}")
    return 1 if options.check and found.red else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="report", description="one page about any number of runs")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="a folder of runs, or of one")
    parser.add_argument("--out", type=Path, default=Path("build/report.html"), metavar="FILE", help="the page")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="the same in short, as Markdown for CI")
    parser.add_argument(
        "--expect",
        action="append",
        default=[],
        metavar="NAME",
        help="red where no result came from this folder; a list",
    )
    parser.add_argument("--before", type=Path, metavar="DIR", help="runs of another day: what they lack is new")
    parser.add_argument("--golden", type=Path, default=GOLDEN, metavar="DIR", help="whose history is told")
    parser.add_argument("--check", action="store_true", help="fail where something is red")
    return parser


if __name__ == "__main__":
    sys.exit(main())
