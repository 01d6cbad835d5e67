"""Runs the compile gates: what `nox -s compile-gates` does, but for its tests.

    python -m nvfp4_suite.ci.compile_gates                          samples and all plans of golden/plans.json
    python -m nvfp4_suite.ci.compile_gates --all --whole            every launch, each compiled as a whole
    python -m nvfp4_suite.ci.compile_gates --launch ID --arch 120   one launch, on one architecture
    python -m nvfp4_suite.ci.compile_gates --diff REV               what a change made of the binaries
    python -m nvfp4_suite.ci.compile_gates --record                 records the facts in golden/codegen/

Exit code 0: all gates hold. 1: one is red. 2: wrong arguments.
"""

import argparse
import contextlib
import importlib.metadata
import os
import sys
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from ..kernels.releases import TRITONS
from . import gate_amd, gate_cache, gate_choice, gate_diff, gate_golden, gate_report, gate_run, gates
from .gate_elsewhere import NoGates
from .gate_known import verdict
from .gate_outcome import Gate, Outcome
from .gate_report import Judged
from .golden_file import Refused

SLOW_LINE = 10  # seconds between lines of progress where there is no terminal


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    judged: list[Judged] = []
    seconds: dict[str, float] = {}
    notes: list[str] = []
    try:
        gate_golden.check_files([triton for triton, _ in _tritons(options)])
        if options.record:
            gate_golden.commit()
        for triton, packages in _tritons(options):
            start = time.perf_counter()
            with _packages(packages):
                found = _judged(triton, _chosen(options, triton), options)
                notes += _compared(triton, found, options)
                notes += [f"Triton {triton}, {line}" for line in (gate_amd.lines(options.jobs) if options.amd else ())]
            judged += gate_golden.against_record(triton, found)
            seconds[triton] = time.perf_counter() - start
        notes += gate_golden.record(judged, options) if options.record else gate_golden.unrecorded(judged)
    except (Refused, NoGates) as refusal:
        print(f"refused: {refusal}", file=sys.stderr)
        return 1
    gate_report.write_logs(judged)
    _write(judged, seconds, options)
    print("\n".join([gate_report.text(judged, seconds), *notes]))
    return 1 if any(each.verdict in gate_report.RED for each in judged) else 0


def _compared(triton: str, judged: list[Judged], options: argparse.Namespace) -> list[str]:
    """What --diff has to say of one Triton."""
    if not options.diff:
        return []
    lines = gate_diff.compared(options.diff, triton, [each.outcome for each in judged], _settings(options))
    return [f"Triton {triton}: {lines[0]}", *lines[1:]]


def _write(judged: list[Judged], seconds: dict[str, float], options: argparse.Namespace) -> None:
    if options.junit:
        gate_report.write_junit(options.junit, judged)
    if options.markdown:
        options.markdown.write_text(gate_report.markdown(judged, seconds), encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="compile-gates", description="compile launches for GPUs that are not there")
    what = parser.add_argument_group("which gates")
    what.add_argument("--launch", action="append", metavar="ID", help="only launches of this id; * stands for anything")
    what.add_argument("--arch", action="append", type=_capability, metavar="SM", help="only this architecture: 120")
    what.add_argument("--all", action="store_true", help="every launch, not samples of what plans do not choose")
    what.add_argument("--whole", action="store_true", help="let Triton make PTX for every architecture by itself")
    parser.add_argument("--triton", default=gates.DEFAULT_TRITON, help='releases, with commas between, or "all"')
    what.add_argument("--amd", action="store_true", help="say what compiles for AMD GPUs; never red")
    parser.add_argument(
        "--packages", action="append", default=[], metavar="VERSION=DIR", help="where a Triton is that is not installed"
    )
    _add_how(parser)
    return parser


def _add_how(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many compile at the same time")
    keeping = parser.add_mutually_exclusive_group()
    keeping.add_argument("--cache", type=Path, metavar="DIR", help="where facts are kept between runs")
    keeping.add_argument("--no-cache", action="store_true", help="compile everything, keep nothing")
    then = parser.add_mutually_exclusive_group()
    then.add_argument("--diff", metavar="REV", help="compare with the binaries of this revision of git")
    then.add_argument("--record", action="store_true", help="record the facts in golden/codegen/")
    parser.add_argument("--reason", metavar="TEXT", help="why recorded facts change; kept beside them")
    parser.add_argument("--junit", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="a summary for CI")


def _capability(name: str) -> tuple[int, int]:
    digits = name.removeprefix("sm_")
    found = [capability for capability in gates.GATED if gates.arch_name(capability) == f"sm_{digits}"]
    if not found:
        known = ", ".join(gates.arch_name(capability).removeprefix("sm_") for capability in gates.GATED)
        raise argparse.ArgumentTypeError(f"{name!r} should be one of {known}")
    return found[0]


def _tritons(options: argparse.Namespace) -> list[tuple[str, str | None]]:
    """(version, directory of its package, None for the installed one) of each Triton that was asked for."""
    packages = dict(each.split("=", 1) for each in options.packages)
    return [(version, packages.get(version)) for version in versions(options.triton)]


def versions(asked: str) -> list[str]:
    """The releases that "3.8", "3.6.0,3.9" or "all" means. Exits for one that is not supported."""
    found = []
    for name in TRITONS if asked == "all" else asked.split(","):
        matching = [version for version in TRITONS if version == name or version.startswith(f"{name}.")]
        if len(matching) != 1:
            print(f"--triton is {name!r}, but should be of {', '.join(TRITONS)} or all", file=sys.stderr)
            raise SystemExit(2)
        found += matching
    return found


@contextlib.contextmanager
def _packages(directory: str | None) -> Iterator[None]:
    """Child processes that start meanwhile import Triton from `directory`; this process imports none."""
    before = list(sys.path)
    if directory:
        sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.path[:] = before


def _chosen(options: argparse.Namespace, triton: str) -> list[Gate]:
    """The gates that the options ask for; one that is named is among all of them. Exits where there are none."""
    listed = gates.launches(triton) if options.all or options.launch else gate_choice.chosen(triton)
    found = [
        gate
        for gate in listed
        if (not options.arch or gate[0] in options.arch)
        and (not options.launch or any(_is_named(gate, name) for name in options.launch))
    ]
    if not found:
        print("no launch has this id on these architectures", file=sys.stderr)
        raise SystemExit(2)
    return found


def _is_named(gate: Gate, name: str) -> bool:
    whole = gates.launch_id(*gate)
    return fnmatchcase(whole, name) or fnmatchcase(whole.split("-", 1)[1], name)


def _judged(triton: str, chosen: list[Gate], options: argparse.Namespace) -> list[Judged]:
    _check_version(triton)
    outcomes = gate_run.run(chosen, _settings(options), Progress(triton, len(chosen), len(gates.launches(triton))))
    return [judge(outcome, triton) for outcome in outcomes]


def _settings(options: argparse.Namespace) -> gate_run.Settings:
    directory = None if options.no_cache else options.cache or gate_cache.default_directory()
    return gate_run.Settings(options.jobs, directory, options.whole)


def judge(outcome: Outcome, triton: str) -> Judged:
    """The verdict on one gate: of its facts, or of why there are none."""
    error = outcome.error
    if outcome.facts:
        try:
            gates.check(outcome.facts, outcome.launch, outcome.capability)
        except gates.GateError as wrong:
            error = str(wrong)
    return Judged(triton, outcome, verdict(outcome, error, triton), error)


def _check_version(triton: str) -> None:
    """The Triton that children will import is this release."""
    try:
        found = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    if found != triton:
        text = (
            f"Triton {triton} should be here, but {found} is: `nox -s compile-gates -- --triton {triton}` installs it"
        )
        print(text, file=sys.stderr)
        raise SystemExit(2)


class Progress:
    """Says how far a run is: always on one line of a terminal, now and then elsewhere."""

    def __init__(self, triton: str, total: int, listed: int):
        self.triton, self.total, self.done, self.red = triton, total, 0, 0
        self.start = self.said = time.perf_counter()
        print(f"compile gates: Triton {triton}, {total} of {listed:,} launches", flush=True)

    def __call__(self, outcome: Outcome) -> None:
        self.done += 1
        self.red += bool(outcome.error)
        now, last = time.perf_counter(), self.done == self.total
        terminal = sys.stdout.isatty()
        if not terminal and not last and now - self.said < SLOW_LINE:
            return
        self.said = now
        errors = f", {self.red} do not compile" if self.red else ""
        line = f"  {self.done}/{self.total}{errors}, {now - self.start:.0f} s, "
        line += gates.launch_id(outcome.capability, outcome.launch)
        print(f"\r{line[:110]:110}" if terminal else line, end="\n" if last or not terminal else "", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
