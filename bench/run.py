"""A benchmark's course: for each layer its banks and yardsticks, for each point its contenders, rows as they come."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import torch

from ..contract.banks import ExpertBanks
from . import compiling, rows
from .contenders import GROUPED, Contender, Grouped, of_kernel
from .host import Host
from .inputs import Inputs, draw
from .measure import BUDGET, measure
from .points import Layer
from .revisions import TODAY
from .rows import Point
from .stages import Given, stage_of
from .subjects import Chosen, Subject, choose
from .truth import Truth

SAMPLE = 16  # tokens whose output is judged element by element
GROUPED_STAGES = ("layer", "gate_up", "down")


@dataclass(frozen=True)
class Request:
    """What is to be timed. `baseline` is who `subjects` are compared with, None for nobody; `grouped` says whether
    torch._grouped_mm is timed beside them. `artifacts`: where rows are written, None for nowhere.
    """

    layers: Sequence[Layer]
    tokens: Sequence[int]
    stages: Sequence[str]
    subjects: Sequence[Subject]
    baseline: Subject | None = None
    grouped: bool = True
    budget: float = BUDGET
    sample: int = SAMPLE
    artifacts: Path | None = None


@dataclass
class Found:
    """The rows so far, and what was wrong, a text each."""

    rows: list[dict] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """One layer on some tokens: everything that its contenders are made of."""

    host: Host
    given: Given
    truth: Truth
    hit: int
    prepared: "Prepared"
    grouped: Grouped | None

    def contender(self, subject: Subject, stage: str) -> Contender:
        """Raises ValueError for a subject that does not run here, or has no such stage."""
        chosen = self.chosen(subject)
        return of_kernel(chosen, stage, self.prepared.of(chosen), self.given, self.truth, self.hit)

    def chosen(self, subject: Subject) -> Chosen:
        given = self.given
        return choose(subject, self.host.gpu, given.layer, given.tokens, self.host.facts["triton"])


class Prepared:
    """What each kernel prepares of one layer's banks, once."""

    def __init__(self, banks: ExpertBanks):
        self._banks = {True: banks, False: banks.without_input_scales()}
        self._made: dict[tuple, object] = {}

    def of(self, chosen: Chosen) -> object:
        key = chosen.subject.kernels.package, chosen.kernel.name
        if key not in self._made:
            self._made[key] = chosen.kernel.prepare(self._banks[chosen.w4a4])
        return self._made[key]


def run(request: Request, host: Host) -> Found:
    """All points of `request`. Raises ValueError for a subject that cannot run at one of them, before it is timed."""
    found, start = Found(), time.monotonic()
    check_request(request, host)
    compile_beforehand(request, host)
    for number, layer in enumerate(request.layers, 1):
        for point in _layer(request, host, layer, found):
            where = f"layer {number} of {len(request.layers)}, {time.monotonic() - start:.0f} s"
            say(f"[{where}] {layer.name} T = {point.tokens} {point.stage}")
            if request.artifacts:
                rows.write(request.artifacts, found.rows)
    return found


def asked(request: Request) -> list[Subject]:
    """All whose time is wanted, the baseline last."""
    return [*request.subjects, *([request.baseline] if request.baseline else [])]


def check_request(request: Request, host: Host) -> None:
    """Raises ValueError for what cannot be timed at some point, before the first is."""
    for chosen in every(request, host):
        for stage in request.stages:
            stage_of(chosen, stage)


def every(request: Request, host: Host) -> Iterator[Chosen]:
    """What each subject is at each point. Raises ValueError for one that does not run there."""
    for layer, tokens, subject in product(request.layers, request.tokens, asked(request)):
        yield choose(subject, host.gpu, layer, tokens, host.facts["triton"])


def compile_beforehand(request: Request, host: Host) -> None:
    """What today's kernels will launch. Triton's interpreter compiles nothing."""
    if host.device == "cuda":
        plans = [one.plan for one in every(request, host) if one.plan and one.subject.kernels is TODAY]
        compiling.compile_all(compiling.launches(plans, request.stages), say)


def _layer(request: Request, host: Host, layer: Layer, found: Found) -> Iterator[Point]:
    """Each point of a layer, once its rows are in `found`. No tensor of it is left behind the last."""
    for place, stage, rates in places(request, host, layer):
        point = Point(layer, place.given.tokens, stage, rates, host.facts)
        _measured(request, place, point, found)
        yield point


def places(request: Request, host: Host, layer: Layer) -> Iterator[tuple[Place, str, rows.Rates]]:
    """The layer's points, one after the other; its banks are freed behind the last."""
    rates = host.yardsticks.measure(host.timer, host.device)
    inputs = draw(layer, max(request.tokens), host.device)
    grouped = _grouped(request, inputs)
    prepared = Prepared(inputs.banks)
    for tokens in request.tokens:
        given = Given(inputs.first(tokens))
        truth = Truth(given, request.sample)
        place = Place(host, given, truth, given.experts_hit(), prepared, grouped)
        for stage in request.stages:
            yield place, stage, rates


def _grouped(request: Request, inputs: Inputs) -> Grouped | None:
    """None where it is not wanted, and where its weights have no room."""
    if not request.grouped or not set(request.stages) & set(GROUPED_STAGES):
        return None
    try:
        return Grouped(inputs.banks, request.stages)
    except torch.OutOfMemoryError:
        say(f"{inputs.layer.name}: no memory for weights of 16 bits, so torch._grouped_mm is left out")
        return None


def _measured(request: Request, place: Place, point: Point, found: Found) -> None:
    """Measures one point into `found`."""
    contenders = [place.contender(subject, point.stage) for subject in asked(request)]
    if place.grouped and point.stage in GROUPED_STAGES:
        contenders.append(place.grouped.contender(point.stage, place.given, place.truth, place.hit))
    measured = measure(contenders, place.host.timer, request.budget)
    baseline = measured[len(request.subjects)] if request.baseline else None
    grouped = next((one for one in measured if one.contender.label == GROUPED), None)
    for one in measured:
        if one.wrong:
            where = f"{point.layer.name} T = {point.tokens} {point.stage}"
            found.wrong.append(f"WRONG, so not timed: {where}: {one.wrong}")
        else:
            found.rows.append(rows.row(point, one, None if one is grouped else baseline, grouped))


def say(line: str) -> None:
    """Progress, on stderr: a table is all that stdout has."""
    print(line, file=sys.stderr, flush=True)
