"""How each kernel is known to be right on each architecture under each Triton: the matrix of a report. Pure.

Nothing is better known than it is. "ran" takes a test of that very kernel that passed on a GPU of that architecture
under that release; the interpreter, which has no architecture, counts in a column of its own.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ...kernels.releases import TRITONS
from . import labels
from .failures import Failure, key_of
from .junit import Result
from .subjects import CAPABILITIES, CPU, KERNELS, Form, form_of, forms, is_meant
from .text import count
from .verdicts import Verdict, unrecorded

Place = tuple[str | Form, str, str]  # kernel, or the form of a function; architecture; Triton

STATES = {  # and the sign in the matrix; a cell has the first of these that anything speaks for
    "failed": "✕",
    "untested": "!",
    "ran": "✓",
    "ran in part": "◐",
    "emulated": "e",
    "compiled": "c",
    "not meant": "",
    "unknown": "·",
}
MEANING = {
    "failed": "a test failed there, or a gate is red",
    "untested": "a case that is due there did not run",
    "ran": "tests passed on such a GPU",
    "ran in part": "some were chosen by hand, or by tier, and passed on such a GPU",
    "emulated": "passed in Triton's interpreter, on a CPU",
    "compiled": "all that it launches there was compiled and holds to its gates; it did not run",
    "not meant": "not made for this architecture or release",
    "unknown": "no run says anything",
}
_UNTESTED = re.compile(r"UNTESTED: \S+ by (\S+)$")


@dataclass(frozen=True)
class Cell:
    """One place of the matrix: its state, one of STATES, how that is known, and the anchor of a failure."""

    state: str
    why: str
    anchor: str = ""

    @property
    def sign(self) -> str:
        return STATES[self.state]


@dataclass(frozen=True)
class Matrix:
    """`cells` has every kernel on every architecture, the interpreter's CPU first, under every Triton."""

    kernels: tuple[str, ...]
    architectures: tuple[str, ...]
    tritons: tuple[str, ...]
    cells: dict[Place, Cell]

    def states(self) -> Counter[str]:
        """How many cells of each state there are."""
        return Counter(cell.state for cell in self.cells.values())


class _Found:
    """What runs say, by place: how many results of each outcome, and the first failure."""

    def __init__(self) -> None:
        self.tests: dict[Place, Counter[str]] = defaultdict(Counter)
        self.gates: dict[Place, Counter[str]] = defaultdict(Counter)
        self.anchors: dict[Place, str] = {}


def matrix(verdicts: list[Verdict], failures: list[Failure]) -> Matrix:
    """The evidence of all runs."""
    found, anchors = _Found(), {(one.kind, one.key): one.anchor for one in failures}
    for verdict in verdicts:
        if verdict.run.kind == "tests":
            _add_tests(found, verdict, anchors)
        elif verdict.run.kind == "gates":
            _add_gates(found, verdict.run.suite.results, anchors)
    kernels = tuple(dict.fromkeys([*KERNELS, *(place[0] for place in found.tests)]))
    archs = (CPU, *sorted({*CAPABILITIES, *_second(found)} - {CPU}, key=_number))
    tritons = tuple(sorted({*TRITONS, *_third(found)}, key=_numbers))
    places = [(kernel, arch, triton) for kernel in kernels for arch in archs for triton in tritons]
    return Matrix(kernels, archs, tritons, {place: _cell(found, place) for place in places})


def _second(found: _Found) -> set[str]:
    return {arch for _, arch, _ in (*found.tests, *found.gates)}


def _third(found: _Found) -> set[str]:
    return {triton for _, _, triton in (*found.tests, *found.gates)}


def _number(arch: str) -> tuple[int, str]:
    digits = re.sub(r"\D", "", arch)
    return int(digits or 0), arch


def _numbers(triton: str) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"\d+", triton)], triton


def _add_tests(found: _Found, verdict: Verdict, anchors: dict) -> None:
    """The results of a session that says where it ran, and which cases it owed a kernel."""
    run, engine = verdict.run, labels.engine(verdict.run)
    archs = {arch for _, arch in run.environment.gpus} if run.environment and engine == "gpu" else set()
    archs = {CPU} if engine == "interpreter" else archs
    triton = run.environment.triton if run.environment else None
    if len(archs) != 1 or not triton:
        return
    (arch,) = archs
    kernels = {(one.group, one.name): one.kernel for one in run.bundles}
    for result in run.suite.results if run.suite else ():
        key = key_of(run.kind, result)
        if kernel := _kernel_of(result) or kernels.get(key):
            outcome = "part" if result.outcome == "passed" and verdict.part else result.outcome
            _count(found.tests, found, (kernel, arch, triton), outcome, anchors.get((run.kind, key)))
    for one in unrecorded(run):
        if one.kernel:
            anchor = anchors.get((run.kind, (one.group, one.name)))
            _count(found.tests, found, (one.kernel, arch, triton), "failed", anchor)
    for line in verdict.problems:
        if named := _UNTESTED.match(line):
            _count(found.tests, found, (named[1], arch, triton), "skipped", anchors.get(("session", ("", run.name))))


def _kernel_of(result: Result) -> str | None:
    """The kernel that a result is of, by its property, or by the end of the test's name where a crash took that."""
    if kernel := result.properties.get("kernel"):
        return kernel
    ends = [kernel for kernel in KERNELS if result.name.endswith(f"-{kernel}]")]
    return max(ends, key=len, default=None)


def _add_gates(found: _Found, results: Iterable[Result], anchors: dict) -> None:
    for result in results:
        arch, triton = labels.gate_of(result.group)
        if function := result.properties.get("function"):
            place = (form_of(function, result.name), arch, triton)
            _count(found.gates, found, place, result.outcome, anchors.get(("gates", key_of("gates", result))))


def _count(counts: dict, found: _Found, place: Place, outcome: str, anchor: str | None) -> None:
    counts[place][outcome] += 1
    if outcome in ("failed", "skipped") and anchor:
        found.anchors.setdefault(place, anchor)


def _cell(found: _Found, place: Place) -> Cell:
    kernel, arch, triton = place
    tests = found.tests.get(place, Counter())
    gates = {(form, arch, triton): Counter() for form in forms(kernel, arch, triton)}
    gates |= {gate: found.gates[gate] for gate in gates if gate in found.gates}
    red = next((gate for gate in gates if gates[gate]["failed"]), None)
    if tests["failed"]:
        return Cell("failed", count(tests["failed"], "test") + " failed", found.anchors.get(place, ""))
    if red:
        why = f"{count(gates[red]['failed'], 'gate')} of {red[0][0]} red"
        return Cell("failed", why, found.anchors.get(red, ""))
    if tests["skipped"]:
        return Cell("untested", count(tests["skipped"], "case") + " did not run", found.anchors.get(place, ""))
    return _good(tests, list(gates.values()), place)


def _good(tests: Counter, gates: list[Counter], place: Place) -> Cell:
    """Of a place where nothing is red."""
    kernel, arch, triton = place
    if tests["passed"]:
        return Cell("emulated" if arch == CPU else "ran", count(tests["passed"], "test") + " passed")
    if tests["part"]:
        why = count(tests["part"], "test") + " passed, of a part of all"
        return Cell("emulated" if arch == CPU else "ran in part", why)
    if not is_meant(kernel, arch, triton):
        return Cell("not meant", MEANING["not meant"])
    held = [one for one in gates if one["passed"]]
    if gates and len(held) == len(gates):
        return Cell("compiled", count(sum(one["passed"] for one in held), "launch", "launches") + " compiled")
    if held:
        return Cell("unknown", f"compiled in {len(held)} of {len(gates)} forms, so not all that it launches")
    return Cell("unknown", MEANING["unknown"])
