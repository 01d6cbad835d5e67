"""How each kernel is known to be right on each architecture under each Triton: the matrix of a report. Pure.

Nothing is better known than it is. "ran" takes a test of that very kernel that passed on a GPU of that architecture
under that release; the interpreter, which has no architecture, counts in a column of its own.
"""

from collections import Counter
from dataclasses import dataclass

from ...kernels.releases import TRITONS
from . import labels
from .failures import Failure
from .heard import Heard, Place, Said
from .subjects import CAPABILITIES, CPU, KERNELS, forms, is_meant
from .text import count
from .verdicts import Verdict

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
    "ran in part": "a part of them passed on such a GPU: chosen by hand, by tier, or a shard without the others",
    "emulated": "passed in Triton's interpreter, on a CPU",
    "compiled": "all that it launches there was compiled and holds to its gates; it did not run",
    "not meant": "not made for this architecture or release",
    "unknown": "no run says anything",
}


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


def matrix(verdicts: list[Verdict], failures: list[Failure]) -> Matrix:
    """The evidence of all runs; places that nobody here knows are added where a run speaks of them."""
    heard = Heard(verdicts, failures)
    spoken = [*heard.tests, *heard.gates]
    kernels = tuple(dict.fromkeys([*KERNELS, *(kernel for kernel, _, _ in heard.tests)]))
    archs = (CPU, *sorted({*CAPABILITIES, *(arch for _, arch, _ in spoken)} - {CPU}, key=labels.by_numbers))
    tritons = tuple(sorted({*TRITONS, *(triton for _, _, triton in spoken)}, key=labels.by_numbers))
    places = [(kernel, arch, triton) for kernel in kernels for arch in archs for triton in tritons]
    return Matrix(kernels, archs, tritons, {place: _cell(heard, place) for place in places})


def _cell(heard: Heard, place: Place) -> Cell:
    """Red, if anything is: tests before gates."""
    kernel, arch, triton = place
    tests = heard.tests.get(place, Said())
    gates = {form: heard.gates.get((form, arch, triton), Said()) for form in forms(kernel, arch, triton)}
    red = next((form for form in gates if gates[form].counts["failed"]), None)
    if failed := tests.counts["failed"]:
        return Cell("failed", f"{count(failed, 'test')} failed", tests.anchor)
    if red:
        return Cell("failed", f"{count(gates[red].counts['failed'], 'gate')} of {red[0]} red", gates[red].anchor)
    if skipped := tests.counts["skipped"]:
        return Cell("untested", f"{count(skipped, 'case')} did not run", tests.anchor)
    return _good(place, tests.counts, [one.counts["passed"] for one in gates.values()])


def _good(place: Place, tests: Counter[str], gates: list[int]) -> Cell:
    """Of a place where nothing is red; `gates`: how many hold of each form that the kernel launches there."""
    emulated = place[1] == CPU
    if tests["passed"]:
        return Cell("emulated" if emulated else "ran", f"{count(tests['passed'], 'test')} passed")
    if tests["part"]:
        why = f"{count(tests['part'], 'test')} passed, of a part of all"
        return Cell("emulated" if emulated else "ran in part", why)
    if not is_meant(*place):
        return Cell("not meant", MEANING["not meant"])
    if gates and all(gates):
        return Cell("compiled", f"{count(sum(gates), 'launch', 'launches')} compiled")
    if any(gates):
        held = sum(map(bool, gates))
        return Cell("unknown", f"compiled in {held} of {len(gates)} forms, so not all that it launches")
    return Cell("unknown", MEANING["unknown"])
