"""What a nightly run owes beside green tests: every job its results, every kind of GPU all cases, every seed its tests.

The results are a folder with one for each job: artifacts/<runner>-<triton>/, with -1of2 and the like behind it where
machines share a runner's work, and HOSTED, those of the jobs without a GPU; report/reading.py says what is in them.
Here manifest.json counts, which tests/manifest.py writes: the part that a session was, all that is due on its GPU, and
what of it ran.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from .report.junit import Result
from .report.reading import Run
from .seed_tests import COMPILE_GATES, SEED_TESTS

HOSTED = ("compile", "interpreter")

Ran = dict[str, dict[str, bool]]  # job -> each test function that ran in it -> whether all of its tests passed


@dataclass(frozen=True)
class Failure:
    """One thing that went wrong in one job. `what` is the same for what is likely to have one cause."""

    what: str
    job: str
    which: str
    text: str = ""
    repro: str = ""


def job_of(run: Run) -> str:
    """The job that a run is of, by its name: "h200-3.8.0/NVIDIA-H200", "h200-3.8.0: golden"."""
    return run.name.partition("/")[0].partition(":")[0]


def node_of(result: Result) -> str:
    """The id of a test, as pytest takes it; of what is none of pytest's, its group and its name."""
    file = f"{result.group.replace('.', '/')}.py" if result.group.startswith("tests.") else result.group
    return f"{file}::{result.name}"


def shards(folder: Path, jobs: list[dict], runs: list[Run]) -> Iterator[Failure]:
    """What the jobs of one runner have not run between them, under the Triton that was asked for."""

    def by_runner(job: dict) -> tuple[str, str]:
        return job["runner"], job["triton"]

    for (runner, triton), parts in groupby(sorted(jobs, key=by_runner), by_runner):
        names = [(part["job"], [part["group"], part["splits"]]) for part in parts]
        mine = [run for run in runs if job_of(run) in {job for job, _ in names}]
        yield from _of_other_tritons(triton, mine)
        yield from _twice(f"{runner}-{triton}", mine)
        if all((folder / job).is_dir() for job, _ in names):
            yield from _untested(f"{runner}-{triton}", folder, names)


def _of_other_tritons(triton: str, runs: list[Run]) -> Iterator[Failure]:
    for run in runs:
        if run.environment and run.environment.triton != triton:
            yield Failure("another Triton was tested", job_of(run), f"{run.environment.triton} instead of {triton}")


def _twice(name: str, runs: list[Run]) -> Iterator[Failure]:
    """Tests that are in two parts: as many others are in none."""
    sessions = [run for run in runs if run.kind == "tests" and run.suite]
    counts = Counter(node for run in sessions for node in {node_of(result) for result in run.suite.results})
    for node in sorted(node for node, count in counts.items() if count > 1):
        yield Failure("a test is in two parts of a session", name, node, "So another one may be in none.")


def _untested(name: str, folder: Path, parts: list[tuple[str, list[int]]]) -> Iterator[Failure]:
    """The cases by kernel that are due, but ran in no part; unless a part came to no end, which is told instead."""
    manifests = []
    for job, part in parts:
        found = [json.loads(path.read_text()) for path in folder.glob(f"{job}/*/manifest.json")]
        if [one["shard"] for one in found] == [part]:
            manifests += found
        else:
            text = f"{len(found)} manifests, but one should be there, of part {part[0]} of {part[1]}"
            yield Failure("a session came to no end", job, "", text)
    if len(manifests) == len(parts):
        due, ran = ({tuple(pair) for one in manifests for pair in one[key]} for key in ("due", "ran"))
        for case, kernel in sorted(due - ran):
            yield Failure("UNTESTED", name, f"{case} by {kernel}")


def functions(runs: list[Run]) -> Ran:
    """What ran in each job; all gates are one function."""
    found: Ran = {}
    for run in runs:
        for result in run.suite.results if run.suite else ():
            if result.outcome in ("passed", "failed"):
                name = COMPILE_GATES if run.kind == "gates" else node_of(result).partition("[")[0]
                ran = found.setdefault(job_of(run), {})
                ran[name] = ran.get(name, True) and result.outcome == "passed"
    return found


def seed_lines(ran: Ran) -> list[str]:
    """What became of each test that the seeds name: "NAME: passed in compile, h200-3.8.0", or where it failed."""
    lines = []
    for name, parts in SEED_TESTS.items():
        jobs = {job: [done[part] for part in parts if part in done] for job, done in sorted(ran.items())}
        failed = [job for job, verdicts in jobs.items() if not all(verdicts)]
        passed = [job for job, verdicts in jobs.items() if verdicts and all(verdicts)]
        words = [f"FAILED in {', '.join(failed)}"] if failed else []
        words += [f"passed in {', '.join(passed)}"] if passed else []
        lines.append(f"{name}: {'; '.join(words) or 'NOT RUN'}")
    return lines


def unseen(ran: Ran) -> Iterator[Failure]:
    """The parts of the seeds' tests that ran in no job."""
    everywhere = {function for done in ran.values() for function in done}
    for name, parts in SEED_TESTS.items():
        for part in parts:
            if part not in everywhere:
                yield Failure("a seed's test did not run", "every job", part, f"It is a part of {name}.")
