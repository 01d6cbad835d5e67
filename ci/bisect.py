"""Finds the commit, or the Triton release, since which a kernel is wrong or its machine code another.

    nox -s bisect -- --good REV --bad REV --case ID [--kernel NAME] [--engine gpu]
    nox -s bisect -- --good REV --bad REV --case ID --digest            since when the output has other bits
    nox -s bisect -- --good REV --bad REV --launch ID --arch 120        since when the machine code is another
    nox -s bisect -- --over triton=3.6.0,3.7.1,3.8.0,3.9.0 --case ID    the release, with the kernels of today
    nox -s bisect -- --over triton=3.8.0,3.9.0 --launch ID --arch 120
    nox -s bisect -- --good REV --bad REV --pack FILE                   for a host that has a GPU, but no git:
    python -m nvfp4_suite.ci.bisect --packed FILE --case ID --engine gpu

A step takes kernels/ alone from a commit, and every other room from today's tree, which may be dirty and may change
meanwhile. It is bad where the judge says that the output differs, or where it fails as the bad end does, in the same
place; it is good where the judge says that the output is right; else it is skipped. An order-free case is judged by the
reference's bits, a random one by its bound. Where the bad end does not fail, a step is bad if its digest is another
than the good end's: with --digest and --over of a case, always of a launch (the digest of its SASS).

Exit code 0: found, and checked. 1: not found. 2: wrong arguments.
"""

import argparse
import contextlib
import difflib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..contract.case import Case
from ..contract.gpus import Gpu
from . import bisect_changes, bisect_lines, bisect_report, gates, gpus, leases
from .bisect_history import Repository
from .bisect_pack import pack
from .bisect_run import Bisection, Result, Step
from .bisect_subject import CaseSubject, LaunchSubject
from .bisect_trial import ROOT, Point, Trials
from .environment import CHOOSES_GPUS, code_changing
from .gate_compile import arch_name
from .gate_facts import Capability
from .golden_file import Refused
from .gpus import NoGpu

ENGINES = ("interpreter", "gpu")
RUNS, SECONDS = 3, 300.0


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    _check(parser, options)
    asked = sys.argv[1:] if arguments is None else arguments
    try:
        if options.pack:
            return _pack(options)
        if variable := code_changing("TRITON_INTERPRET"):  # of which each engine has its own
            raise Refused(f"{variable} is set, but should be unset: other code would run")
        with tempfile.TemporaryDirectory(prefix="nvfp4-bisect-", ignore_cleanup_errors=True) as work:
            result, changes = _bisected(options, Path(work))
    except KeyboardInterrupt:
        print("stopped; nothing is left behind", file=sys.stderr)
        return 1
    except (Refused, NoGpu) as refusal:
        print(f"refused: {refusal}", file=sys.stderr)
        _write(options, bisect_report.refusal(str(refusal), asked))
        return 1
    print(bisect_report.text(result, changes))
    _write(options, bisect_report.document(result, changes, asked))
    return 0 if result.confirmed else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bisect", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_argument_group("where to look")
    where.add_argument("--good", metavar="REV", help="a commit that is good, an ancestor of the bad one")
    where.add_argument("--bad", metavar="REV", help="a commit that is bad")
    where.add_argument("--first-parent", action="store_true", help="take a merged branch as one commit, the merge")
    packing = where.add_mutually_exclusive_group()
    packing.add_argument("--pack", type=Path, metavar="FILE", help="write all that --packed needs, and do no more")
    packing.add_argument("--packed", type=Path, metavar="FILE", help="what --pack wrote, where there is no git")
    where.add_argument("--over", metavar="triton=V,V,...", help="between releases of Triton, the first of them good")
    what = parser.add_argument_group("what to look at")
    what.add_argument("--case", metavar="ID", help="an output: the case of this id")
    what.add_argument("--kernel", metavar="NAME", help="by this kernel; default: the first that fails at the bad end")
    what.add_argument("--engine", choices=ENGINES, default="interpreter", help="default: interpreter")
    what.add_argument("--digest", action="store_true", help="other bits are bad, also where they are right")
    what.add_argument("--launch", metavar="ID", help="machine code: the launch of this id, as compile-gates prints it")
    what.add_argument("--arch", metavar="SM", help="of this architecture: 120")
    parser.add_argument("--triton", metavar="V", help="the release for all commits; default: the installed one")
    parser.add_argument("--packages", action="append", default=[], metavar="V=DIR", help="where a release is")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"how often each end is run; default: {RUNS}")
    parser.add_argument("--timeout", type=float, default=SECONDS, metavar="SECONDS", help="of a step; default: 300")
    parser.add_argument("--artifacts", type=Path, metavar="DIR", help=f"write {bisect_report.FILE} there")
    return parser


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exits for options that do not go together."""
    if sum(map(bool, (options.over, options.packed, options.good or options.bad))) != 1:
        parser.error("--good and --bad should be given, or --packed, or --over")
    if bool(options.good) != bool(options.bad):
        parser.error("--good and --bad should both be given")
    if options.pack and (options.case or options.launch or not options.good):
        parser.error("--pack takes --good, --bad and --first-parent, and says nothing of a case or a launch")
    if bool(options.case) == bool(options.launch) and not options.pack:
        parser.error("either --case should be given, or --launch")
    if options.launch and not options.arch:
        parser.error("--launch needs --arch")
    if options.launch and (options.kernel or options.digest or options.engine == "gpu"):
        parser.error("--launch takes no --kernel, --digest and --engine gpu: it compiles, and compares machine code")
    if options.over and options.triton:
        parser.error("--over takes no --triton: it names the releases itself")
    if options.runs < 1 or options.timeout <= 0:
        parser.error("--runs should be at least 1, and --timeout above 0")


def _pack(options: argparse.Namespace) -> int:
    repository = Repository(ROOT, options.first_parent)
    number = pack(options.pack, repository, repository.history(options.good, options.bad))
    print(f"{number} commits in {options.pack}; where there is no git, --packed takes it instead of --good and --bad")
    return 0


def _bisected(options: argparse.Namespace, work: Path) -> tuple[Result, dict[str, list[str]]]:
    """The result, and what the first bad point changed. Raises Refused and NoGpu."""
    what = _launch(options) if options.launch else _named(options.case)
    repository = Repository(ROOT, options.first_parent)
    line, extract = bisect_lines.of(options, repository)
    with _gpu(options) as gpu, Trials(work, extract, options.timeout) as trials:
        if options.launch:
            subject = LaunchSubject(trials, *what)
        else:
            subject = _case(options, CaseSubject(trials, work, what, options.kernel, gpu), line.bad)
        by_digest = bool(options.digest or options.over or options.launch)
        _say(f"{subject}, between {line.good.name} and {line.bad.name}: {len(line.parents)} to look through")
        bisection = Bisection(subject, line, runs=options.runs, by_digest=by_digest, say=_say)
        result = bisection.result()
        changes = bisect_changes.changes(subject, result) if result.confirmed else {}
    return result, changes


def _say(line: object | Step) -> None:
    print(str(line)[:160], file=sys.stderr, flush=True)


@contextlib.contextmanager
def _gpu(options: argparse.Namespace) -> Iterator[Gpu | None]:
    """The GPU that steps run on, leased meanwhile; None for the interpreter. Raises Refused and NoGpu without one."""
    if options.launch or options.engine != "gpu":
        yield None
        return
    leased, busy = leases.lease(gpus.mine(), most=1)
    if not leased:
        raise Refused(f"no GPU is free: {', '.join(f'{one.device} is of {one.owner}' for one in busy)}")
    os.environ[CHOOSES_GPUS] = leased[0].visible.spelling
    try:
        yield Gpu(leased[0].device.name, leased[0].device.capability)
    finally:
        leased[0].release()


def _case(options: argparse.Namespace, subject: CaseSubject, bad: Point) -> CaseSubject:
    """The subject of --case; without --kernel, by the first kernel that fails at the bad end."""
    if options.kernel:
        return subject
    names = subject.kernels(bad)
    for subject.kernel in names:
        if options.digest or options.over or subject.found(bad).failure:
            return subject
    raise Refused(f"the bad end {bad.name} is good: none of {', '.join(names)} fails")


def _named(id: str) -> Case:
    from ..cases.layers import ALL

    cases = {case.id: case for case in ALL}
    if id not in cases:
        near = difflib.get_close_matches(id, cases, n=3, cutoff=0)
        raise Refused(f"--case is {id!r}, but should be the id of a case, such as {', '.join(near)}")
    return cases[id]


def _launch(options: argparse.Namespace) -> tuple[str, Capability]:
    """The whole id of --launch, which may lack the architecture, and the capability, which Refused is raised for."""
    known = {arch_name(capability).removeprefix("sm_"): capability for capability in gates.GATED}
    arch = options.arch.removeprefix("sm_")
    if arch not in known:
        raise Refused(f"--arch is {options.arch!r}, but should be one of {', '.join(known)}")
    prefix = f"sm_{arch}-"
    return prefix + options.launch.removeprefix(prefix), known[arch]


def _write(options: argparse.Namespace, told: dict) -> None:
    if options.artifacts:
        print(f"written: {bisect_report.write(options.artifacts, told)}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
