"""What runs say of kernels in places: how many results of which outcome. Pure; evidence.py makes a matrix of it."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from . import labels
from .failures import Failure, Key, key_of
from .junit import Result
from .subjects import CPU, KERNELS, Form, form_of
from .verdicts import Verdict, shard, unrecorded

Place = tuple[str | Form, str, str]  # kernel, or the form of a function; architecture; Triton

_UNTESTED = re.compile(r"UNTESTED: \S+ by (\S+)$")


@dataclass
class Said:
    """Of one place: results by outcome ("part": passed, but of a part of all), and a failure's place in the page."""

    counts: Counter[str] = field(default_factory=Counter)
    anchor: str = ""

    def add(self, outcome: str, anchor: str) -> None:
        self.counts[outcome] += 1
        if outcome in ("failed", "skipped"):
            self.anchor = self.anchor or anchor


class Heard:
    """Everything that runs say, by place: `tests` of kernels, `gates` of the forms of functions."""

    def __init__(self, verdicts: Iterable[Verdict], failures: Iterable[Failure]):
        self.tests: dict[Place, Said] = defaultdict(Said)
        self.gates: dict[Place, Said] = defaultdict(Said)
        self._groups: dict[tuple[str, str, int], set[int]] = defaultdict(set)
        self._anchors = {(one.kind, one.key): one.anchor for one in failures}
        for verdict in verdicts:
            if verdict.run.kind == "tests":
                self._add_tests(verdict)
            elif verdict.run.kind == "gates":
                self._add_gates(verdict.run.suite.results)
        self._settle_shards()

    def _add_tests(self, verdict: Verdict) -> None:
        """The results of a session, if it says on which one architecture, and under which release, it ran."""
        environment, engine = verdict.run.environment, labels.engine(verdict.run)
        archs = {arch for _, arch in environment.gpus} if environment and engine == "gpu" else set()
        archs = {CPU} if engine == "interpreter" else archs
        if len(archs) == 1 and environment and environment.triton:
            if part := shard(verdict.run):
                self._groups[*archs, environment.triton, part[1]].add(part[0])
            for kernel, outcome, kind, key in _results(verdict):
                place = (kernel, *archs, environment.triton)
                self.tests[place].add(outcome, self._anchors.get((kind, key), ""))

    def _settle_shards(self) -> None:
        """What passed in a shard passed of all, where every other shard is here as well."""
        whole = {(arch, triton) for (arch, triton, n), groups in self._groups.items() if groups == {*range(1, n + 1)}}
        for (_, *where), said in self.tests.items():
            said.counts["passed" if tuple(where) in whole else "part"] += said.counts.pop("shard", 0)

    def _add_gates(self, results: Iterable[Result]) -> None:
        for result in results:
            arch, triton = labels.gate_of(result.group)
            if function := result.properties.get("function"):
                anchor = self._anchors.get(("gates", key_of("gates", result)), "")
                self.gates[form_of(function, result.name), arch, triton].add(result.outcome, anchor)


def _results(verdict: Verdict) -> Iterator[tuple[str, str, str, Key]]:
    """(kernel, outcome, kind and key of the failure) of all that a session did for a kernel, or owed it."""
    run = verdict.run
    bundled = {(one.group, one.name): one.kernel for one in run.bundles}
    for result in run.suite.results if run.suite else ():
        key = key_of(run.kind, result)
        owed = result.outcome != "skipped" or verdict.untested  # nobody owes what was chosen by hand
        if owed and (kernel := _kernel_of(result) or bundled.get(key)):
            part = "shard" if shard(run) else "part" if verdict.part else "passed"
            yield kernel, part if result.outcome == "passed" else result.outcome, run.kind, key
    for one in unrecorded(run):
        if one.kernel:
            yield one.kernel, "failed", run.kind, (one.group, one.name)
    for line in verdict.problems:
        if named := _UNTESTED.match(line):
            yield named[1], "skipped", "session", ("", run.name)


def _kernel_of(result: Result) -> str | None:
    """The kernel that a result is of, by its property, or by the end of the test's name where a crash took that."""
    if kernel := result.properties.get("kernel"):
        return kernel
    ends = [kernel for kernel in KERNELS if result.name.endswith(f"-{kernel}]")]
    return max(ends, key=len, default=None)
