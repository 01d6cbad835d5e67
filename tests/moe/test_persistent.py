"""The persistent form of the W4A4 down GEMM: a few programs share all tiles, and no number of them changes a bit."""

from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import w4a4_layer
from nvfp4_suite.kernels.plan import LayerPlan, plan_layer
from nvfp4_suite.kernels.w4a4 import DEFAULT, FORMS, PERSISTENT_BELOW
from nvfp4_suite.reference import judge

from .subject import context_of, expected_of, plan_options, run_plan

CARD = Gpu("", (8, 0))  # any card can run its plans

# Two row tiles of down each; several blocks, of which some are not needed; and a tile and steps of K that are ragged.
CASES = [
    Case(LayerShape(4, 2, 80, 48), 6, format="w4a4", dtype="fp16"),
    Case(LayerShape(4, 4, 80, 48), 6, "dropped", format="w4a4", dtype="fp16"),
    Case(LayerShape(4, 2, 80, 80), 6, inputs="random", format="w4a4"),
]


def planned(case: Case, persistent: bool) -> LayerPlan:
    """The plan for `case`, with down in the form that is asked for."""
    plan = plan_layer(CARD, case.shape, case.tokens, kernel=DEFAULT, **plan_options(case))
    return replace(plan, launches=tuple(_with(launch, persistent) for launch in plan.launches))


def _with(launch, persistent: bool):
    if launch.stage != "down":
        return launch
    return replace(launch, constexprs=tuple((dict(launch.constexprs) | {"PERSISTENT": persistent}).items()))


def grid_of_down(monkeypatch) -> list[int]:
    """Filled with the number of programs of each down that runs."""
    grids, start = [], w4a4_layer.start

    def recorded(launch, grid, **arguments):
        if launch.stage == "down":
            grids.extend(grid)
        return start(launch, grid, **arguments)

    monkeypatch.setattr(w4a4_layer, "start", recorded)
    return grids


@lru_cache(maxsize=len(CASES))
def plain(case: Case, device: str) -> torch.Tensor:
    return run_plan(planned(case, persistent=False), case, device)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("programs", [1, 2, 5, 1000])
def test_any_number_of_programs_gives_the_bits_of_a_program_for_each_tile(case, programs, device, monkeypatch):
    expected, grids = plain(case, device), grid_of_down(monkeypatch)
    monkeypatch.setattr(w4a4_layer, "resident_programs", lambda *_: programs)
    judge.bitwise(run_plan(planned(case, persistent=True), case, device), expected, **context_of(case))
    assert grids == [programs] or grids[0] < programs == 1000  # never more than tiles


@pytest.mark.parametrize("case", [case for case in CASES if case.inputs == "orderfree"])
def test_a_program_for_each_tile_gives_the_right_bits(case, device):
    judge.bitwise(plain(case, device), expected_of(case, "w4a4"), **context_of(case))


def test_how_many_programs_run_is_a_matter_of_the_device_alone(device, monkeypatch):
    """More tokens are more tiles, not more programs, and no other binary."""
    grids = grid_of_down(monkeypatch)
    monkeypatch.setattr(w4a4_layer, "resident_programs", lambda *_: 2)
    shape = LayerShape(4, 2, 80, 48)
    few, many = (Case(shape, tokens, inputs="random", format="w4a4") for tokens in (1, 9))
    plans = [planned(case, persistent=True) for case in (few, many)]
    for case, plan in zip((few, many), plans, strict=True):
        run_plan(plan, case, device)
    assert plans[0].launch("down") == plans[1].launch("down") and grids == [2, 2]


def test_as_many_programs_as_the_multiprocessors_hold(monkeypatch):
    """Known of the device by its properties; the interpreter has a few, so that each of them walks over tiles."""
    properties = type("Properties", (), {"multi_processor_count": 132})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    w4a4_layer.resident_programs.cache_clear()
    assert w4a4_layer.resident_programs(torch.device("cuda", 0), 4) == 4 * 132
    assert w4a4_layer.resident_programs(torch.device("cpu"), 4) == 3
    w4a4_layer.resident_programs.cache_clear()


@pytest.mark.parametrize("kernel", FORMS)
def test_it_is_planned_for_few_steps_of_k(kernel):
    sizes = (16, PERSISTENT_BELOW - 16, PERSISTENT_BELOW, 2048)
    shapes = [LayerShape(64, 4, 2048, size) for size in sizes]
    plans = [plan_layer(CARD, shape, 64, kernel=kernel, input_scales=True) for shape in shapes]
    assert [plan.launch("down").constexpr("PERSISTENT") for plan in plans] == [True, True, False, False]
