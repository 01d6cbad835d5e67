"""What engines make of cases, and what is wrong with it: the words that exact.py and recorded.py share. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .golden_file import Refused

TOOL = "python -m nvfp4_suite.ci.golden"
ON_CPU = ("reference", "interpreter")  # engines that every host has


@dataclass(frozen=True)
class Outcome:
    """What an engine made of one key: its digest, or the problem that left it without one.

    `plan` is the kernel's, in one line, where the digest is that of one kernel alone.
    """

    digest: str | None = None
    problem: str | None = None
    plan: str | None = None


@dataclass(frozen=True)
class Recording:
    """Digests by key as `engine` gave them, and the SHA-256 of the sources that it ran.

    `digests` are those of order-free cases, `recorded` outcomes of the others, by recorded.name; those a GPU alone has.
    """

    engine: str
    provenance: dict[str, str]
    sources: str
    digests: dict[str, str]
    recorded: dict[str, Outcome] = field(default_factory=dict)

    @property
    def triton(self) -> str:
        """The release, without what a build adds to it."""
        return self.provenance["triton"].partition("+")[0]

    @property
    def confirms_as(self) -> str:
        """The engine's name in golden/exact.json: another compiler makes another engine of a GPU."""
        return confirmation(self.engine, self.provenance)


def confirmation(engine: str, provenance: Mapping[str, str]) -> str:
    """ "reference", "interpreter" or one like "sm_90 triton 3.8.0"."""
    if engine in ON_CPU:
        return engine
    return f"{engine} triton {provenance['triton'].partition('+')[0]}"


@dataclass(frozen=True)
class Finding:
    """What is wrong with a key: FAILED, CHANGED, UNTESTED or STALE, and the facts, each one line."""

    status: str
    key: str
    facts: tuple[str, ...] = ()


def agreed(first: dict[str, Outcome], second: dict[str, Outcome]) -> tuple[dict[str, Outcome], list[str]]:
    """What two runs in fresh processes agree on, and a line for each output that has a problem, or varies."""
    good, lines = {}, []
    for name in sorted(first.keys() | second.keys()):
        one, two = (run.get(name, Outcome(problem="not run")) for run in (first, second))
        if problem := one.problem or two.problem:
            lines.append(f"{name} fails: {first_line(problem)}")
        elif one.digest != two.digest:
            lines.append(f"{name} varies: {one.digest} in one fresh process, {two.digest} in the next")
        else:
            good[name] = one
    return good, lines


def first_line(problem: str) -> str:
    """Judges explain a difference in twenty lines; a test of the case shows them all."""
    return problem.partition("\n")[0]


def check_reason(conflicts: list[str], reason: str | None) -> None:
    """Raises Refused where recorded digests change, as `conflicts` say, without a `reason`, and the other way round."""
    if conflicts and reason is None:
        raise Refused("\n".join(["a recorded digest changes only with --reason TEXT:", *conflicts]))
    if reason is not None and not (conflicts and reason.strip()):
        raise Refused(f"--reason is {reason!r}, but should be a text, and only where a recorded digest changes")


def compare(outcomes: Mapping[str, Outcome], entries: Mapping[str, dict]) -> list[Finding]:
    """What is wrong with `outcomes`, and which of their keys `entries` lacks."""
    findings = []
    for name, outcome in sorted(outcomes.items()):
        if outcome.problem:
            findings.append(Finding("FAILED", name, (first_line(outcome.problem),)))
        elif name not in entries:
            findings.append(Finding("UNTESTED", name))
        elif outcome.digest != entries[name]["digest"]:
            facts = (f"recorded {entries[name]['digest']}", f"found    {outcome.digest}")
            findings.append(Finding("CHANGED", name, facts))
    return findings


def stale(entries: Iterable[str], known: set[str]) -> list[Finding]:
    """Those of the keys `entries` that nothing has any more."""
    return [Finding("STALE", name) for name in sorted(set(entries) - known)]
