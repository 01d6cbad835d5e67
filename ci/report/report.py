"""All of a report as data: what the page and the summary are made of. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from . import compiled, evidence, failures, goldens, reading, verdicts
from .bench import Row
from .text import count


@dataclass(frozen=True)
class Report:
    """`verdicts` has a line for each run; `damaged` are (run, file, why)."""

    verdicts: tuple[verdicts.Verdict, ...]
    failures: tuple[failures.Failure, ...]
    matrix: evidence.Matrix
    compiled: tuple[compiled.Line, ...]
    known: tuple[str, ...]
    rows: tuple[Row, ...]
    goldens: goldens.Goldens
    damaged: tuple[tuple[str, str, str], ...]
    attached: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def red(self) -> bool:
        return not self.verdicts or any(one.red for one in self.verdicts) or bool(self.goldens.damaged)

    @property
    def untested(self) -> int:
        return sum(one.untested for one in self.verdicts)

    @property
    def headline(self) -> str:
        """As "2 of 5 runs are red: 14 failures, 3 UNTESTED"."""
        if not self.verdicts:
            return "There is no run, so nothing is known"
        red = sum(one.red for one in self.verdicts)
        runs = count(len(self.verdicts), "run")
        if not red:
            return f"Nothing is red in {runs}" + (", but golden/ is damaged" if self.goldens.damaged else "")
        broken = sum(one.kind != "session" for one in self.failures)
        new = sum(bool(one.new) for one in self.failures if one.kind != "session")
        named = [count(broken, "distinct failure") + (f" ({new} new)" if new else "")] if broken else []
        named += [f"{self.untested:,} UNTESTED"] if self.untested else []
        return f"{red} of {runs} {'is' if red == 1 else 'are'} red" + (f": {', '.join(named)}" if named else "")

    @property
    def hardware(self) -> str:
        """What ran on GPUs, and that nothing did."""
        ran = [one for one in self.verdicts if one.how == "ran" and one.passed + one.failed]
        names = dict.fromkeys(one.on for one in ran if one.run.kind == "tests")
        return f"Ran on {', '.join(names)}." if ran else "Nothing ran on a GPU."


def make(results: reading.Results, golden: goldens.Goldens, before: reading.Results | None = None) -> Report:
    """The report of `results`, and of what golden/ tells; failures that `before` does not have are new."""
    told = tuple(verdicts_of(results))
    found = tuple(failures.collect(told, before and map(verdicts.of, before.runs)))
    return Report(
        verdicts=told,
        failures=found,
        matrix=evidence.matrix(told, found),
        compiled=tuple(compiled.lines(told)),
        known=tuple(known(told)),
        rows=tuple(row for run in results.runs for row in run.rows),
        goldens=golden,
        damaged=tuple((run.name, file, why) for run in results.runs for file, why in run.damaged),
        attached=tuple(results.attached),
        unknown=tuple(results.unknown),
    )


def verdicts_of(results: reading.Results) -> list[verdicts.Verdict]:
    """The verdicts on all runs, and on jobs that say of themselves that they failed where no run of theirs is red."""
    found = [verdicts.of(run) for run in results.runs]
    red = [one.run.name for one in found if one.red]
    for job, word in results.statuses.items():
        if word != "success" and not any(reading.is_in(name, job) for name in red):
            found.append(verdicts.of(reading.Run(job, status=word or "nothing")))
    return sorted(found, key=lambda one: one.run.name)


def known(told: tuple[verdicts.Verdict, ...]) -> Iterator[str]:
    """A line for each reason of failures that were expected: of how many results, and in which runs."""
    found: dict[str, list[str]] = {}
    for one in told:
        for result in one.run.suite.results if one.run.suite else ():
            if result.outcome == "known":
                found.setdefault(result.message or "nobody says why", []).append(one.run.name)
    for reason, runs in found.items():
        yield f"{reason} ({count(len(runs), 'result')} of {', '.join(dict.fromkeys(runs))})"
