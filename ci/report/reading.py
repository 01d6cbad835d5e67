"""Folders of results as runs. What cannot be read, and what nobody knows, is kept and said: nothing is dropped.

A run is one JUnit file with what lies beside it. `gpu-tests --artifacts=DIR` leaves environment.json, session.json,
junit.xml and failures/, under a sanitizer also sanitizer.json; `compile-gates --junit FILE` and `golden verify --junit
FILE` leave JUnit of any name, a benchmark *.jsonl. They lie at any depth, by custom in RUNNER-TRITON/.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from . import bench, junit, records
from .bundles import Bundle, read_bundle

KINDS = {"pytest": "tests", "compile-gates": "gates", "golden": "golden"}  # by the name of the suite
ATTACHED = (".md", ".log", ".txt", ".html")  # for people
FAILURES = "failures"
STATUS = "status.txt"  # the word by which a job says how it went


@dataclass
class Run:
    """One row of a report. `kind`: "tests", "gates", "golden", "bench", or "nothing" where there is no result.

    `damaged` are (file, why). `status`: what a job says of itself that nothing else says, see report.py.
    """

    name: str
    kind: str = "nothing"
    suite: junit.Suite | None = None
    environment: records.Environment | None = None
    session: records.Session | None = None
    tool: records.Tool | None = None
    manifest: records.Manifest | None = None
    bundles: list[Bundle] = field(default_factory=list)
    rows: list[bench.Row] = field(default_factory=list)
    damaged: list[tuple[str, str]] = field(default_factory=list)
    status: str = ""


@dataclass
class Results:
    """All that was found. `attached` are files for people, `unknown` those that nothing here reads.

    `statuses`: by folder, the word of its STATUS.
    """

    runs: list[Run] = field(default_factory=list)
    attached: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    statuses: dict[str, str] = field(default_factory=dict)


def read(roots: list[Path], expected: list[str] = ()) -> Results:
    """The runs in `roots`, in the order of their names. Raises ValueError for a root that is no folder.

    A root, and of a single root each folder in it, that has no result is a run without one; so is each of `expected`,
    names of such folders.
    """
    if wrong := [root for root in roots if not root.is_dir()]:
        raise ValueError(f"{wrong[0]} should be a folder of runs")
    base, found = Path(os.path.commonpath([root.resolve() for root in roots])), Results()
    for root in roots:
        for folder in _folders(root):
            _read_folder(folder, _name(folder, base), found)
    due = [*(_name(top, base) for top in _tops(roots, base, found.runs)), *expected]
    missing = [name for name in dict.fromkeys(due) if not any(is_in(run.name, name) for run in found.runs)]
    found.runs = sorted([*found.runs, *map(Run, missing)], key=lambda run: run.name)
    return found


def _tops(roots: list[Path], base: Path, runs: list[Run]) -> list[Path]:
    """The folders that should have a result each: several roots, or the folders in one that is no run itself."""
    single = len(roots) == 1 and not any(_is_of(run.name, _name(roots[0], base)) for run in runs)
    return (_inside(roots[0]) if single else []) or roots


def _inside(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())


def _folders(root: Path) -> Iterator[Path]:
    """`root` and all folders in it, but for bundles, which are their session's."""
    yield root
    for folder in _inside(root):
        if folder.name != FAILURES:
            yield from _folders(folder)


def _name(path: Path, base: Path) -> str:
    relative = path.resolve().relative_to(base).as_posix()
    return path.resolve().name if relative == "." else relative


def _is_of(run: str, folder: str) -> bool:
    """Whether a run's name is that of `folder`, perhaps with that of a file behind."""
    return run == folder or run.startswith(f"{folder}: ")


def is_in(run: str, folder: str) -> bool:
    """Whether a run of this name lies in `folder`, or below it."""
    return _is_of(run, folder) or run.startswith(f"{folder}/")


def _read_folder(folder: Path, name: str, found: Results) -> None:
    """Adds the runs of one folder: one for each JUnit file, of which the first of tests has what lies beside it."""
    session, suites = Run(name), {}
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        try:
            if file.suffix == ".xml":
                suites[file.stem] = junit.read(file)
            elif file.name == STATUS:
                found.statuses[name] = file.read_text(encoding="utf-8").strip()
            elif not _take(file, session):
                where = found.attached if file.suffix in ATTACHED else found.unknown
                where.append(f"{name}/{file.name}")
        except (OSError, ValueError, RecursionError) as error:
            session.damaged.append((file.name, str(error)))
    _take_bundles(folder / FAILURES, session)
    found.runs += _runs(session, suites)


def _runs(session: Run, suites: dict[str, junit.Suite]) -> Iterator[Run]:
    for stem, suite in suites.items():
        kind = KINDS.get(suite.name, "tests")
        if kind == "tests" and session.suite is None:
            session.suite = suite
        else:
            yield Run(session.name if stem == "junit" else f"{session.name}: {stem}", kind, suite)
    told = session.suite or session.session or session.tool or session.bundles
    if told or (session.environment and not session.rows):
        session.kind = "tests"
    elif session.rows:
        session.kind = "bench"
    if session.kind != "nothing" or session.damaged:
        yield session


def _take(file: Path, session: Run) -> bool:
    """Whether `file`, which is no JUnit, is one that a session leaves; then `session` has it."""
    if file.name in records.KINDS:
        found = records.read(file)
        match found:
            case records.Environment():
                session.environment = found
            case records.Session():
                session.session = found
            case records.Tool():
                session.tool = found
            case records.Manifest():
                session.manifest = found
    elif file.suffix == ".jsonl":
        rows, problems = bench.read(file)
        session.rows += rows
        session.damaged += [(f"{file.name}, line {line}", why) for line, why in problems]
    else:
        return False
    return True


def _take_bundles(folder: Path, session: Run) -> None:
    for path in sorted(folder.glob("*")):
        try:
            session.bundles.append(read_bundle(path))
        except (OSError, ValueError, RecursionError) as error:
            session.damaged.append((f"{FAILURES}/{path.name}", str(error)))
