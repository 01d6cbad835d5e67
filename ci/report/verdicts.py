"""What a run says in one line: red or not, how it is known, on what, and how many of what. Pure.

Red is all that did not happen as it should, an untested test as well as a failed one. How something is known never gets
better on the way: "ran" stands for a GPU alone.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from . import labels
from .bundles import Bundle
from .reading import Run
from .text import count

HOW = {"gpu": "ran", "interpreter": "emulated", "compile": "compiled", "peers": "compared"}  # by a session's engine
UNTESTED = "UNTESTED"
_MORE = re.compile(r"UNTESTED: (\d+) more of ")


@dataclass(frozen=True)
class Verdict:
    """`problems` are what makes the run red beside failed tests, a line each; `part`: it was not to run all."""

    run: Run
    how: str
    on: str
    versions: tuple[str, ...]
    passed: int
    failed: int
    untested: int
    known: int
    part: bool
    problems: tuple[str, ...]

    @property
    def red(self) -> bool:
        return bool(self.failed or self.problems)

    @property
    def word(self) -> str:
        """ "failed", "untested", "no result", "emulated", "ran in part", ...: in red first what is worst."""
        if self.failed:
            return "failed"
        if any(not line.startswith(UNTESTED) for line in self.problems):
            return "no result" if self.run.suite is None and not self.run.rows else "failed"
        if self.problems:
            return "untested"
        if self.run.suite and not self.passed:
            return "nothing passed"
        return self.how + (" in part" if self.part else "")

    @property
    def green(self) -> bool:
        """Whether tests ran on a GPU, all that were due, and passed."""
        return self.word == "ran"

    @property
    def line(self) -> str:
        """What it was on and with which versions."""
        return " · ".join(filter(None, [self.on, *self.versions]))

    @property
    def seconds(self) -> float:
        return self.run.suite.seconds if self.run.suite else 0.0


def of(run: Run) -> Verdict:
    """The verdict on one run."""
    counts = Counter(result.outcome for result in run.suite.results) if run.suite else Counter()
    problems = tuple(_problems(run, counts))
    failed = counts["failed"] + len(unrecorded(run))
    where = (_how(run), labels.on(run), labels.versions(run))
    return Verdict(run, *where, counts["passed"], failed, _untested(run, counts), counts["known"], _part(run), problems)


def unrecorded(run: Run) -> list[Bundle]:
    """The bundles whose test the run's JUnit file does not know as failed, perhaps because there is no such file."""
    failed = {(one.group, one.name) for one in run.suite.results if one.outcome == "failed"} if run.suite else set()
    return [one for one in run.bundles if (one.group, one.name) not in failed]


def _problems(run: Run, counts: Counter) -> Iterator[str]:
    """Why a run is red although no test failed."""
    for file, why in run.damaged:
        yield f"DAMAGED: {file}: {why}"
    told = [*(run.session.problems if run.session else ()), *(run.tool.problems if run.tool else ())]
    yield from told
    if run.status:
        yield f"JOB NOT GREEN: it says {run.status!r:.80}, but nothing that it left says why"
    elif run.kind == "nothing" and not run.damaged:
        yield "NO RESULT: nothing came from this run"
    elif run.kind == "tests" and run.suite is None and not told:
        yield "NO RESULT: there is no JUnit file, so the session came to no end"
    elif run.suite and not run.suite.results:
        yield "NO RESULT: no test ran"
    chosen = run.session and not run.session.whole  # by hand: then a skip is none that anybody owes
    if counts["skipped"] and not chosen and not any(line.startswith(UNTESTED) for line in told):
        yield f"UNTESTED: {count(counts['skipped'], 'test was', 'tests were')} skipped"
    if run.session and run.session.exit and not counts["failed"] and not told:
        yield f"EXIT CODE {run.session.exit}, although no test failed"


def _untested(run: Run, counts: Counter) -> int:
    """A session names what it did not run; of another one the skips are counted."""
    lines = [line for line in (run.session.problems if run.session else ()) if line.startswith(UNTESTED)]
    lines += [line for line in (run.tool.problems if run.tool else ()) if line.startswith(UNTESTED)]
    named = sum(int(more[1]) if (more := _MORE.match(line)) else 1 for line in lines)
    return named or (0 if run.session and not run.session.whole else counts["skipped"])


def _part(run: Run) -> bool:
    """Whether tests were left out, by hand, by tier or for another shard, or nobody says that none were."""
    return run.kind == "tests" and not (_all_that_is_due(run) and (run.manifest is None or run.manifest.splits == 1))


def shard(run: Run) -> tuple[int, int] | None:
    """(group, splits) of a session that left out nothing but what is in another's part."""
    told = run.manifest
    return (told.group, told.splits) if told and told.splits > 1 and _all_that_is_due(run) else None


def _all_that_is_due(run: Run) -> bool:
    return run.session is not None and run.session.whole and run.session.tier == "all"


def _how(run: Run) -> str:
    if run.kind == "tests":
        how = HOW.get(labels.engine(run), "unknown")
        return how if how != "ran" or (run.environment and run.environment.gpus) else "unknown"
    if run.kind == "golden":
        known = {"interpreter": "emulated", "reference": "computed"}
        name = run.suite.properties.get("engine", "")
        return "ran" if name.startswith("sm_") else known.get(name, "unknown")
    return {"gates": "compiled", "bench": "timed"}.get(run.kind, "unknown")
