"""Which jobs a workflow has: the JSON that GitHub's `fromJSON` makes a matrix of.

    python -m nvfp4_suite.ci.matrix --tier nightly                  every runner of ci/runners.json, Triton and shard
    python -m nvfp4_suite.ci.matrix --tier dispatch --runner h200   those of them that somebody asks for
    python -m nvfp4_suite.ci.matrix --tier pr                       Tritons to compile for, on no runner of ours

Exit code 0: the matrix is on stdout; in the file of --output it is behind "matrix=", the names of its jobs are behind
"jobs=". 1: it would be empty, or something in it is unknown. 2: wrong arguments.
"""

import argparse
import json
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..kernels.releases import TRITONS
from . import runners
from .gates import DEFAULT_TRITON
from .runners import Runner, Unknown

ROOT = Path(__file__).resolve().parent.parent
TIERS = ("nightly", "pr", "dispatch")
MOST_JOBS = 256  # that GitHub makes of one matrix


@dataclass(frozen=True)
class Tree:
    """What jobs depend on beside their runner: the torch that sessions install, and whether there is a bench to run."""

    torch: str
    bench: bool


def matrix(tier: str, fleet: tuple[Runner, ...], tree: Tree, *, runner: str = "", triton: str = "") -> dict:
    """`{"include": [...]}`, one entry a job. `runner` and `triton` choose for the tier "dispatch"; "" is all. Pure.

    Raises Unknown for a tier, a runner or a Triton that is none, and for a matrix of no jobs or of more than GitHub
    takes.
    """
    if tier not in TIERS:
        raise Unknown(f"tier is {tier!r}, but should be of {', '.join(TIERS)}")
    if tier != "dispatch" and (runner or triton):
        raise Unknown(f"tier is {tier!r}, but only 'dispatch' chooses a runner or a Triton")
    jobs = list(_compiled() if tier == "pr" else _tested(fleet, tree, runner, triton))
    if not 0 < len(jobs) <= MOST_JOBS:
        raise Unknown(f"the matrix of {tier} has {len(jobs)} jobs, but should have 1 to {MOST_JOBS}")
    return {"include": jobs}


def _compiled() -> Iterator[dict]:
    """The oldest, the default and the newest Triton: as many jobs in each year. The nightly run has those between."""
    for triton in dict.fromkeys((TRITONS[0], DEFAULT_TRITON, TRITONS[-1])):
        yield {"job": f"compile-{triton}", "name": f"compile gates, Triton {triton}", "triton": triton}


def _tested(fleet: tuple[Runner, ...], tree: Tree, name: str, triton: str) -> Iterator[dict]:
    chosen = [one for one in fleet if name in ("", one.name)]
    if not chosen:
        raise Unknown(f"runner is {name!r}, but should be of {', '.join(one.name for one in fleet) or 'none at all'}")
    under = {one for runner in chosen for one in runner.tritons}
    if triton and triton not in under:
        raise Unknown(f"triton is {triton!r}, but should be of {', '.join(sorted(under))}, which {name or 'they'} have")
    for runner in chosen:
        for release in runner.tritons:
            if triton in ("", release):
                yield from (_job(runner, release, group, tree) for group in range(1, runner.shards + 1))


def _job(runner: Runner, triton: str, group: int, tree: Tree) -> dict:
    """One GPU job: `job` names it and its folder of results, `kind` is the GPU that it must find."""
    shard = f"-{group}of{runner.shards}" if runner.shards > 1 else ""
    part = f", part {group} of {runner.shards}" if runner.shards > 1 else ""
    bench = "" if tree.bench else ", no bench yet"
    return {
        "job": f"{runner.name}-{triton}{shard}",
        "name": f"{runner.kind}, Triton {triton}, torch {tree.torch}{part}{bench}",
        "runner": runner.name,
        "labels": list(runner.labels),
        "kind": runner.kind,
        "triton": triton,
        "group": group,
        "splits": runner.shards,
        "bench": tree.bench,
    }


def tree_at(root: Path) -> Tree:
    """What the sessions of the tree `root` install and have."""
    groups = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    return Tree(groups["torch"][0].partition("==")[2], (root / "bench").is_dir())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nvfp4_suite.ci.matrix", description="the jobs of a workflow")
    parser.add_argument("--tier", required=True, help=f"one of {', '.join(TIERS)}")
    parser.add_argument("--runner", default="", metavar="NAME", help="for dispatch: only this runner")
    parser.add_argument("--triton", default="", metavar="VERSION", help="for dispatch: only under this Triton")
    parser.add_argument("--output", type=Path, metavar="FILE", help="GitHub's file of a step's outputs")
    options = parser.parse_args(arguments)
    try:
        fleet = () if options.tier == "pr" else runners.read()
        found = matrix(options.tier, fleet, tree_at(ROOT), runner=options.runner, triton=options.triton)
    except Unknown as error:
        print(f"no matrix: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=1))
    if options.output:
        with options.output.open("a", encoding="utf-8") as file:
            file.write(f"matrix={json.dumps(found)}\njobs={','.join(job['job'] for job in found['include'])}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
