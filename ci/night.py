"""What went wrong in a nightly run, and what it owes: reads the results of all its jobs, on a machine without a GPU.

    python -m nvfp4_suite.ci.night artifacts --matrix JSON [--json FILE] [--summary FILE]

`--matrix` is what ci/matrix.py gave the run. Prints each distinct failure once, and what became of the seeds' tests;
the failures are written to FILE for ci/issues.py. Exit code 0: nothing is red. 1: something. 2: wrong arguments.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from . import files, markdown, owed
from .owed import HOSTED, Failure, job_of
from .report import failures as reported
from .report import reading
from .report.report import verdicts_of
from .report.text import cut

PLACES = 20  # of one failure that are named; the others are counted
LINES, COLUMNS = 40, 200  # of one explanation
COMMANDS = 5  # that repeat it
PROBLEMS = 100  # of one session


def red(results: reading.Results) -> Iterator[Failure]:
    """What failed, by what is likely to have one cause; a session's problems are a failure each."""
    verdicts = verdicts_of(results)
    jobs = {one.run.name: job_of(one.run) for one in verdicts}
    for one in reported.collect(verdicts):
        for occurrence in one.occurrences:
            job = jobs[occurrence.run]
            if one.kind == "session":
                for line in cut(occurrence.explanation, PROBLEMS).splitlines():
                    what, _, which = line.partition(": ")
                    yield Failure(what, job, which)
            else:
                told = cut(occurrence.explanation, LINES, COLUMNS), cut("\n".join(occurrence.repro), COMMANDS)
                yield Failure(_what(one), job, cut(one.title, 1), *told)


def _what(failure: reported.Failure) -> str:
    """Such as "tests/moe/test_random.py::test_x kernel", "gates: gemm.w4a16_gemm", "golden: w4a16"."""
    group, name = failure.key
    if failure.kind == "golden":  # the name is CASE/ROUNDING or CASE/KERNEL/SPEED
        return cut(f"golden: {name.partition('/')[2].partition('/')[0]}", 1)
    start = f"{group.replace('.', '/')}.py::" if failure.kind == "tests" else f"{failure.kind}: "
    return cut(start + failure.family.strip(), 1)


def all_failures(folder: Path, jobs: list[dict], results: reading.Results) -> list[Failure]:
    """What is red, and what is missing."""
    ran = owed.functions(results.runs)
    return [*red(results), *owed.shards(folder, jobs, results.runs), *owed.unseen(ran)]


def names(jobs: list[dict]) -> list[str]:
    """All jobs that should have left results."""
    return [*HOSTED, *(one["job"] for one in jobs)]


def distinct(failures: Iterable[Failure]) -> list[dict]:
    """`failures` by what failed, the most widespread first: where each was, and the first one's text and command."""
    by_what: dict[str, list[Failure]] = {}
    for failure in failures:
        by_what.setdefault(failure.what, []).append(failure)
    ordered = sorted(by_what.items(), key=lambda item: (-len({one.job for one in item[1]}), -len(item[1]), item[0]))
    return [_merged(what, ones) for what, ones in ordered]


def _merged(what: str, ones: list[Failure]) -> dict:
    places = [[one.job, one.which] for one in ones[:PLACES]]
    return {"what": what, "count": len(ones), "places": places, "text": ones[0].text, "repro": ones[0].repro}


def text(found: list[dict], seeds: list[str]) -> str:
    """The whole night for a log: what failed, and the seeds' tests by name."""
    lines = []
    for one in found:
        where = ", ".join(dict.fromkeys(job for job, _ in one["places"]))
        lines.append(f"FAILED: {one['what']}: {one['count']} in {where}")
        lines += [f"    {line}" for line in one["repro"].splitlines()]
    return "\n".join([*(lines or ["nothing failed"]), "", "The seeds' tests:", *(f"  {line}" for line in seeds)])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nvfp4_suite.ci.night", description="what went wrong in a night")
    parser.add_argument("artifacts", type=Path, help="a folder with the results of each job")
    parser.add_argument("--matrix", required=True, type=json.loads, metavar="JSON", help="the jobs, of ci/matrix.py")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where distinct failures are written")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="GitHub's file of a step's summary")
    options = parser.parse_args(arguments)
    jobs = options.matrix["include"]
    options.artifacts.mkdir(parents=True, exist_ok=True)  # it is not there where no job left anything
    results = reading.read([options.artifacts], names(jobs))
    found = distinct(all_failures(options.artifacts, jobs, results))
    page = text(found, owed.seed_lines(owed.functions(results.runs)))
    print(page)
    if options.json:
        files.write_text(options.json, json.dumps(found, indent=1) + "\n")
    if options.summary:
        with options.summary.open("a", encoding="utf-8") as file:
            file.write(f"{markdown.block(page)}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
