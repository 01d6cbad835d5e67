"""What a nightly run owes, and what of it went wrong: reads the results of all its jobs, on a machine without a GPU.

    python -m nvfp4_suite.ci.night artifacts --matrix JSON [--json FILE] [--summary FILE]

`--matrix` is what ci/matrix.py gave the run. Every job of it must have left results, under the Triton that was asked
for; the shards of one runner must have run, together, all that is due on its GPU; and every test that the seeds name
must have run somewhere. What went wrong is printed, each distinct failure once, and written to FILE for ci/issues.py.
Exit code 0: nothing. 1: something. 2: wrong arguments.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from . import files, markdown, results
from .results import Failure
from .seed_tests import COMPILE_GATES, SEED_TESTS

HOSTED = ("compile", "interpreter")  # the jobs that need no GPU
PLACES = 20  # of one failure that are named; the others are counted


def owed(folder: Path, jobs: list[dict]) -> Iterator[Failure]:
    """What is missing from `folder`, the results of the GPU jobs of a matrix and of those that need no GPU."""
    left = {job for job in [*HOSTED, *(one["job"] for one in jobs)] if (folder / job / "status.txt").is_file()}
    for job in [*HOSTED, *(one["job"] for one in jobs)]:
        if job not in left:
            yield Failure("a job left no results", job, "", "It did not start, or was lost: its log says more.", "")

    def by_runner(job: dict) -> tuple[str, str]:
        return job["runner"], job["triton"]

    for (runner, triton), shards in groupby(sorted(jobs, key=by_runner), by_runner):
        here = list(shards)
        if left.issuperset(one["job"] for one in here):
            yield from _of_shards(folder, f"{runner}-{triton}", triton, here)


def _of_shards(folder: Path, name: str, triton: str, shards: list[dict]) -> Iterator[Failure]:
    """What the jobs that share a runner's tests have not run between them, once each of them came to its end."""
    manifests = []
    for shard in shards:
        job = shard["job"]
        found = [json.loads(path.read_text()) for path in folder.glob(f"{job}/*/manifest.json")]
        if [one["shard"] for one in found] == [[shard["group"], shard["splits"]]]:
            manifests += found
        else:
            text = f"{len(found)} manifests, but one should be there, of part {shard['group']} of {shard['splits']}"
            yield Failure("a session came to no end", job, "", text, "")
        for path in folder.glob(f"{job}/*/environment.json"):
            if (other := json.loads(path.read_text())["triton"]) != triton:
                yield Failure("another Triton was tested", job, f"{other} instead of {triton}", "", "")
    if len(manifests) == len(shards):
        due, ran = ({tuple(pair) for one in manifests for pair in one[key]} for key in ("due", "ran"))
        for case, kernel in sorted(due - ran):
            yield Failure(
                f"UNTESTED by {kernel}", name, case, "It is due there, but no part of the session ran it.", ""
            )


def functions(folder: Path) -> dict[str, dict[str, bool]]:
    """Job -> each test function that ran in it, without parameters -> whether all of them passed."""
    found: dict[str, dict[str, bool]] = {}
    for record in sorted(folder.rglob("*.xml")):
        ran = found.setdefault(record.relative_to(folder).parts[0], {})
        for test in results.readable(record):
            if test.verdict != "skipped":
                name = COMPILE_GATES if test.node.startswith(COMPILE_GATES) else test.node.partition("[")[0]
                ran[name] = ran.get(name, True) and test.verdict == "passed"
    return found


def seed_lines(ran: dict[str, dict[str, bool]]) -> list[str]:
    """What became of each test that the seeds name: "NAME: passed in compile, h200-3.8.0", or where it failed."""
    lines = []
    for name, parts in SEED_TESTS.items():
        jobs = {job: [functions[part] for part in parts if part in functions] for job, functions in ran.items()}
        failed = [job for job, verdicts in jobs.items() if not all(verdicts)]
        passed = [job for job, verdicts in jobs.items() if verdicts and all(verdicts)]
        words = [f"FAILED in {', '.join(failed)}"] if failed else []
        words += [f"passed in {', '.join(passed)}"] if passed else []
        lines.append(f"{name}: {'; '.join(words) or 'NOT RUN'}")
    return lines


def unseen(ran: dict[str, dict[str, bool]]) -> Iterator[Failure]:
    """The parts of the seeds' tests that ran in no job."""
    everywhere = {function for functions in ran.values() for function in functions}
    for name, parts in SEED_TESTS.items():
        for part in parts:
            if part not in everywhere:
                yield Failure("a seed's test did not run", "every job", part, f"It is a part of {name}.", "")


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
    parser = argparse.ArgumentParser(prog="python -m nvfp4_suite.ci.night", description="what a nightly run owes")
    parser.add_argument("artifacts", type=Path, help="a folder with the results of each job")
    parser.add_argument("--matrix", required=True, type=json.loads, metavar="JSON", help="the jobs, of ci/matrix.py")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where distinct failures are written")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="GitHub's file of a step's summary")
    options = parser.parse_args(arguments)
    jobs = options.matrix["include"]
    folders = [options.artifacts / job for job in [*HOSTED, *(one["job"] for one in jobs)]]
    ran = functions(options.artifacts)
    failures = [*owed(options.artifacts, jobs), *(one for path in folders for one in results.failures(path))]
    found = distinct([*failures, *unseen(ran)])
    page = text(found, seed_lines(ran))
    print(page)
    if options.json:
        files.write_text(options.json, json.dumps(found, indent=1) + "\n")
    if options.summary:
        with options.summary.open("a", encoding="utf-8") as file:
            file.write(f"{markdown.block(page)}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
