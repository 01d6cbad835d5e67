"""Every kernel runs the edge tests by launches of its own, as its plans for a GPU that it is for say: none is here."""

import re

import pytest

from nvfp4_suite.contract.gpus import CATALOG, Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import decode, plan, variants, w4a4
from nvfp4_suite.kernels.plan import LayerPlan, plan_layer
from nvfp4_suite.kernels.registry import KERNELS

from ..meta.tree import ROOT
from .edges import EDGES, UNITS, shape_of

PLANNED = [name for name in KERNELS if name in plan.KERNELS]
FOLDERS = ("moe", "launch")
BY_NAME = re.compile(r"\bW4A16\b|KERNELS\.(values|items)|kernels_here\(|taken\(|at_edge\(")
OWN_SHAPE = re.compile(r"Shape\(\d+, \d+, \d")
# Files that run every kernel and have a shape of their own as well, and what for.
OTHER_SHAPES = {
    "test_edges.py": "a plan for another layer",
    "test_orderfree.py": "tiles and cards of the default kernel",
}
STAND_IN = {variants.DEFAULT, decode.NAME, w4a4.DEFAULT}  # whose launches others have where they cannot have their own
# How the reason of a plan ends that lacks nothing.
WHOLE = re.compile(r": (block \d+|a GEMV for each route(, on tensor cores in gate_up and down)?)$")


def capabilities(kernel: str) -> tuple[tuple[int, int], ...]:
    """What `kernel` is for. Those that promise every GPU are told apart where there is e4m3."""
    return KERNELS[kernel].promise.capabilities or ((9, 0),)


def card_of(kernel: str) -> Gpu:
    return next(gpu for gpu in CATALOG if gpu.capability in capabilities(kernel))


def planned(kernel: str, gpu: Gpu, shape: LayerShape, tokens: int) -> LayerPlan:
    return plan_layer(gpu, shape, tokens, kernel=kernel, input_scales=True)


def lacks(kernel: str, shape: LayerShape, tokens: int) -> str:
    """Why the plan of `kernel` for such a layer is not all its own; empty where it is."""
    gpu = card_of(kernel)
    mine = planned(kernel, gpu, shape, tokens)
    if not WHOLE.search(mine.reason):
        return mine.reason
    others = [other for other in PLANNED if other != kernel and gpu.capability in capabilities(other)]
    same = [other for other in others if planned(other, gpu, shape, tokens).launches == mine.launches]
    return f"it has the launches of {', '.join(same)}" if same and kernel not in STAND_IN else ""


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("kernel", PLANNED)
def test_every_kernel_runs_every_edge_by_launches_of_its_own(kernel: str, edge: str):
    """Where it does not: it needs a line in UNITS."""
    shape, (_, tokens) = shape_of(edge, kernel), EDGES[edge]
    assert lacks(kernel, shape, tokens) == "", f"{kernel} on {card_of(kernel).name}, {shape}"


@pytest.mark.parametrize("kernel", UNITS)
def test_what_a_kernel_needs_it_needs(kernel: str):
    """A line that says more than there is to say would let an edge grow unseen."""
    assert any(lacks(kernel, *EDGES[edge]) for edge in EDGES)
    assert all(shape_of(edge, variants.DEFAULT) == EDGES[edge][0] for edge in EDGES)


def test_what_runs_every_kernel_takes_its_shape_from_the_edges():
    """Or from a table of cases, of which cases/layers.py has some for each kernel."""
    paths = [path for folder in FOLDERS for path in (ROOT / "tests" / folder).glob("*.py")]
    found = {path.name for path in paths if BY_NAME.search(path.read_text()) and OWN_SHAPE.search(path.read_text())}
    assert found == set(OTHER_SHAPES)
