"""One bisect: verifies both ends, searches between them, and verifies what it found."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, log2

from .bisect_found import Aim, Found, short
from .bisect_search import BAD, GOOD, SKIP, Parents, search
from .bisect_subject import CaseSubject, LaunchSubject
from .bisect_trial import Point
from .golden_file import Refused


@dataclass(frozen=True)
class Line:
    """What lies between `good` and `bad`: the suspects' parents, as bisect_search has them; `point` says what they are.

    `before` are the points just before one, suspects or not.
    """

    good: Point
    bad: Point
    parents: Parents
    point: Callable[[str], Point]
    before: Callable[[Point], list[Point]]


@dataclass(frozen=True)
class Step:
    """`what` was run ("good end", "step 2 of about 5", "check"), and what came of it."""

    what: str
    point: Point
    verdict: str
    found: Found

    def __str__(self) -> str:
        place = f"{self.what:18}  {self.point.name:12}  {self.point.subject[:40]:40}"
        return f"{place}  {self.verdict:5}  {self.found.seconds:5.1f} s  {self.found}"


@dataclass
class Result:
    """`first_bad`: one point, or those of which it is one; `confirmed` says that it is bad and what is before it good.

    `last_good` is a point before the first bad one. `steps` are all that were run, in order.
    """

    subject: str
    repeat: str  # the command that runs the subject once more
    first_bad: list[Point]
    last_good: Point | None = None
    confirmed: bool = False
    notes: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def found(self, point: Point) -> Found:
        """What was last found at `point`."""
        return next(step.found for step in reversed(self.steps) if step.point.key == point.key)


class Bisection:
    """`runs` is how often each end is run; `by_digest`, whether another digest than the good end's is bad.

    It is so only where the bad end has no failure, which is then what is looked for. `say` is told each step.
    """

    def __init__(
        self,
        subject: CaseSubject | LaunchSubject,
        line: Line,
        *,
        runs: int,
        by_digest: bool,
        say: Callable[[Step], None],
    ):
        self.subject, self.line, self.runs, self.by_digest, self.say = subject, line, runs, by_digest, say
        self.steps: list[Step] = []
        self.known: dict[tuple, str] = {}  # verdicts by Point.key

    def result(self) -> Result:
        """Raises Refused where the ends are not what they should be, or vary."""
        self.aim = self._aim()
        self.known = {self.line.good.key: GOOD, self.line.bad.key: BAD}
        left = search(self.line.parents, next(iter(self.line.parents)), self._test)
        first_bad = [self.line.point(one) for one in left]
        result = Result(str(self.subject), self.subject.repeat, first_bad, steps=self.steps)
        if len(left) == 1:
            self._check(result)
        return result

    def _runs(self, what: str, point: Point) -> list[Found]:
        found = []
        for number in range(self.runs):
            found.append(self.subject.found(point))
            said = "fails" if found[-1].failure else SKIP if found[-1].unusable else "ran"
            self._note(Step(f"{what}, {number + 1} of {self.runs}", point, said, found[-1]))
            if found[-1].unusable:
                raise Refused(f"the {what} {point.name} cannot be judged: {found[-1]}")
        return found

    def _aim(self) -> Aim:
        """What is bad, from what is found at the ends."""
        good = self._runs("good end", self.line.good)
        digest = good[0].digest if self.by_digest else None
        self._check_end("good", self.line.good, good, Aim(digest), GOOD)
        bad = self._runs("bad end", self.line.bad)
        failure = bad[0].failure
        aim = Aim(None if failure else digest, failure)
        self._check_end("bad", self.line.bad, bad, aim, BAD)
        return aim

    def _check_end(self, name: str, point: Point, found: list[Found], aim: Aim, wanted: str) -> None:
        verdicts = [aim.verdict(one) for one in found]
        if set(verdicts) == {wanted}:
            return
        told = "; ".join(dict.fromkeys(map(str, found)))
        if len(set(verdicts)) > 1:
            raise Refused(f"the {name} end {point.name} varies ({', '.join(verdicts)}), and so may any step: {told}")
        if wanted == BAD and verdicts[0] == GOOD:
            raise Refused(f"the bad end {point.name} is good: {self._why_good(found[0])}")
        raise Refused(f"the {name} end {point.name} should be {wanted}, but: {told}")

    def _why_good(self, bad: Found) -> str:
        good = self.steps[0].found
        if self.by_digest or good.digest == bad.digest:
            return f"nothing fails there, and its digest is the good end's, {short(bad.digest)}"
        return f"nothing fails there; its digest is another, {short(good.digest)} -> {short(bad.digest)}: --digest"

    def _test(self, id: str, left: int) -> str:
        point = self.line.point(id)
        if point.key not in self.known:
            number = 1 + sum(step.what.startswith("step") for step in self.steps)
            about = number - 1 + max(1, ceil(log2(left)))
            self.known[point.key] = self._tried(f"step {number} of about {about}", point)
        return self.known[point.key]

    def _tried(self, what: str, point: Point) -> str:
        found = self.subject.found(point)
        verdict = self.aim.verdict(found)
        self._note(Step(what, point, verdict, found))
        return verdict

    def _note(self, step: Step) -> None:
        self.steps.append(step)
        self.say(step)

    def _check(self, result: Result) -> None:
        """Whether the point is bad once more, and all before it are good."""
        (point,) = result.first_bad
        before = self.line.before(point)
        verdicts = {one.name: self._tried("check before", one) for one in before}
        here = self._tried("check", point)
        result.last_good = next((one for one in before if verdicts[one.name] == GOOD), None)
        result.confirmed = here == BAD and set(verdicts.values()) == {GOOD}
        if not result.confirmed:
            told = ", ".join(f"{name} {verdict}" for name, verdict in verdicts.items())
            result.notes.append(f"it is {here} now, and before it: {told}; it varies, or turns bad more than once")
        elif self.aim.digest and result.found(point).digest != result.found(self.line.bad).digest:
            result.notes.append(f"the digest changes again until {self.line.bad.name}: bisect from {point.name} on")
