"""Whether this benchmark can be trusted on this card: what it must report, it reports, and nothing else.

A kernel that is 3 % slower is the kernel with another behind it that does nothing for 3 % of its time. It must be
called slower, by nearly as much; the same kernel twice must not be called slower or faster; a kernel whose output is
off by 2 % must get no time.
"""

from dataclasses import dataclass, replace
from statistics import median

from .contenders import Contender
from .host import Host
from .measure import Ready, measure, race, ready, timed
from .rows import Point, row, write
from .run import Found, Request, check_request, compile_beforehand, places, say

INJECTED = 0.03
REPORTED = (1.02, 1.05)  # the ratio that 3 % may be reported as
REPEATS = 5
OFF_BY = 1.02


@dataclass(frozen=True)
class Line:
    """One of the self-test's checks."""

    good: bool
    text: str

    def __str__(self) -> str:
        return f"{'ok    ' if self.good else 'FAILED'} {self.text}"


def run(request: Request, host: Host) -> tuple[Found, list[Line]]:
    """The checks at each point of `request`, of its first subject. All rows are of layers that were found right."""
    found, lines = Found(), []
    check_request(request, host)
    compile_beforehand(request, host)
    for layer in request.layers:
        for place, stage, rates in places(replace(request, grouped=False), host, layer):
            base = place.contender(request.subjects[0], stage)
            point = Point(layer, place.given.tokens, stage, rates, host.facts)
            again = replace(base, label=f"{base.label} again")
            three = [ready(one, host.timer) for one in (_slowed(base, host), again, base)]
            for repeat in range(REPEATS):
                lines += _compared(three, point, host, request.budget, found)
                say(f"{layer.name} T = {point.tokens}: {repeat + 1} of {REPEATS}")
            lines.append(_refused(base, point, host))
            if request.artifacts:
                write(request.artifacts, found.rows)
    return found, lines


def _slowed(base: Contender, host: Host) -> Contender:
    milliseconds = median(timed([host.timer.capture(base.function)], host.timer, 0.05)[0])
    delayed = host.timer.delayed(base.function, INJECTED * milliseconds)
    return replace(base, label=f"{base.label} + {INJECTED:.0%}", function=delayed)


def _compared(three: list[Ready], point: Point, host: Host, budget: float, found: Found) -> list[Line]:
    """Of the slowed kernel, the kernel again and the kernel."""
    measured = race(three, host.timer, budget)
    found.wrong += [one.wrong for one in measured if one.wrong]
    if any(one.wrong for one in measured):
        return [Line(False, f"{point.layer.name} T = {point.tokens}: an output is wrong")]
    rows = [row(point, one, measured[-1], None) for one in measured]
    found.rows += rows
    return [_judged(rows[0], "slower"), _judged(rows[1], "the same")]


def _judged(row: dict, expected: str) -> Line:
    """Of a row with a ratio, whether it says what it must."""
    said = f"{row['ratio']:.4f} [{row['ratio_low']:.4f}, {row['ratio_high']:.4f}] {row['verdict']}"
    if expected == "slower":
        good = row["verdict"] == "slower" and REPORTED[0] < row["ratio"] < REPORTED[1]
        wanted = f"should be slower, by {REPORTED[0]} to {REPORTED[1]}"
    else:
        good, wanted = row["verdict"] not in ("slower", "faster"), "should be neither slower nor faster"
    return Line(good, f"{row['shape']} T = {row['tokens']} {row['kernel']}: {said}" + ("" if good else f"; {wanted}"))


def _refused(base: Contender, point: Point, host: Host) -> Line:
    """Whether an output that is off gets no time."""
    off = replace(base, label="off by 2 %", function=lambda: base.function() * OFF_BY)
    (measured,) = measure([off], host.timer, 0.01)
    what = f"{point.layer.name} T = {point.tokens}: an output that is off by {OFF_BY - 1:.0%}"
    return Line(bool(measured.wrong), what + (" gets no time" if measured.wrong else " was timed"))
