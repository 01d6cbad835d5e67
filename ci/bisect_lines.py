"""What a bisect looks through, as a Line: the commits between two revisions, or releases of Triton."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from ..kernels.releases import TRITONS
from .bisect_history import Commit, History, Repository
from .bisect_pack import Packed
from .bisect_run import Line
from .bisect_trial import Point
from .golden_file import Refused

Extract = Callable[[str, Path], None]  # writes the kernels/ of a git tree into a folder


def of(options: argparse.Namespace, repository: Repository) -> tuple[Line, Extract]:
    """What --over, --packed, or --good and --bad ask for, and where old kernels come from. Raises Refused."""
    if options.over:
        return _releases(options), repository.extract
    if options.packed:
        packed = Packed(options.packed)
        return _commits(options, packed, packed.history), packed.extract
    if repository.changed():
        print("kernels/ has changes here that are in no commit: no step has them", file=sys.stderr)
    return _commits(options, repository, repository.history(options.good, options.bad)), repository.extract


def _commits(options: argparse.Namespace, source: Repository | Packed, history: History) -> Line:
    folder = _packages(options).get(options.triton)

    def point(commit: Commit) -> Point:
        return Point(commit.id, commit.name, commit.subject, commit.by, commit.tree, folder, options.triton)

    def before(one: Point) -> list[Point]:
        return [point(commit) for commit in source.parents(one.id)]

    ends = point(history.good), point(history.bad)
    return Line(*ends, history.parents, lambda id: point(source.commit(id)), before)


def _releases(options: argparse.Namespace) -> Line:
    """The releases of --over, each with the one before it as its parent."""
    name, _, versions = options.over.partition("=")
    named, packages = versions.split(","), _packages(options)
    if name != "triton" or len(named) < 2 or len(set(named)) < len(named) or set(named) - set(TRITONS):
        raise Refused(f"--over is {options.over!r}, but should be triton= and two or more of {','.join(TRITONS)}")
    points = {one: Point(one, f"Triton {one}", triton=packages.get(one), release=one) for one in named}
    before = dict(zip(named[1:], named, strict=False))
    parents = {one: (before[one],) if before[one] != named[0] else () for one in reversed(named[1:])}
    ends = points[named[0]], points[named[-1]]
    return Line(*ends, parents, points.__getitem__, lambda point: [points[before[point.id]]])


def _packages(options: argparse.Namespace) -> dict[str | None, str]:
    """By release, the folder that has it. Raises Refused for one that has none."""
    found = {}
    for each in options.packages:
        release, _, folder = each.partition("=")
        if not Path(folder, "triton").is_dir():
            raise Refused(f"--packages is {each!r}, but should be V=DIR, where DIR/triton is that release")
        found[release] = str(Path(folder).resolve())
    return found
