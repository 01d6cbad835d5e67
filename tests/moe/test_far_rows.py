"""Rows beyond 2^31 elements: every launch makes of them what it makes of the same rows nearby.

Seen in sgl-project/sglang#4727: a 32-bit row number times a 32-bit distance of rows, in loads and in stores. No GPU is
needed to see it: the interpreter runs the programs of the first and the last row alone, and of a tensor of 4.3 GB a CPU
provides only those pages that are touched. Nothing here uses a GPU; for that see tests/launch/test_row_distance.py.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from nvfp4_suite.contract.case import hashed
from nvfp4_suite.kernels.arguments import as_declared
from nvfp4_suite.kernels.decode import NAME as DECODE
from nvfp4_suite.kernels.launch import Launch, start
from nvfp4_suite.kernels.linear_plan import plan_linear
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.reference import formats, judge

from ..addresses import checked_addresses
from .edges import EDGES, shape_of
from .gate_up import CARD, W4A16

FAR, DISTANCE = 2**18, 2**13  # the number of the last row, and the elements from row to row: it begins at 2^31
NARROW = 32  # rows of weights, or K, where the other one is DISTANCE
LAYER = EDGES["far apart"][0]  # gate_up has a K of DISTANCE, down has as many weight rows


@contextlib.contextmanager
def _programs(numbers: list[int], of: int) -> Iterator[None]:
    """A launch of len(numbers) programs on the first axis runs these, as in a grid of `of`."""
    from triton.runtime.interpreter import interpreter_builder as builder

    place, set_grid = builder.set_grid_idx, builder.set_grid_dim
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "set_grid_dim", lambda _, y, z: set_grid(of, y, z))
        patch.setattr(builder, "set_grid_idx", lambda x, y, z: place(numbers[x], y, z))
        yield


def _ends(tiles: int, tiles_of_a_row: int = 1) -> dict:
    """The programs of the first and of the last of `tiles`, for _programs."""
    first = list(range(tiles_of_a_row))
    return {"numbers": first + [(tiles - 1) * tiles_of_a_row + one for one in first], "of": tiles * tiles_of_a_row}


def _rows(count: int, columns: int) -> torch.Tensor:
    """bf16 [count, columns], of which the first two and the last two rows are filled, for every count alike."""
    rows = torch.empty(count, columns, dtype=torch.bfloat16)
    rows[[0, 1, -2, -1]] = ((hashed("far rows", 4, columns) >> 8) % 15 - 7).to(torch.bfloat16)
    return rows


def _in_few_steps(launch: Launch, k: int = NARROW, n: int = NARROW) -> Launch:
    """`launch` with tiles that take DISTANCE in few steps: they are no matter here, and the interpreter is slow."""
    sizes = {"BLOCK": DISTANCE // 4, "BLOCK_N": DISTANCE // 4 if n == DISTANCE else NARROW, "WORDS": 4}
    if k == DISTANCE:
        sizes |= {"BLOCK_KB": DISTANCE // 8, "WORDS": DISTANCE // 32}
    return replace(launch, constexprs=tuple((name, sizes.get(name, value)) for name, value in launch.constexprs))


def _weights(launch: Launch, n: int, k: int) -> dict:
    bank = {
        "packed": (hashed("far rows/packed", 1, n, k // 2) & 0xFF).to(torch.uint8),
        "scale": torch.ones(1, n, k // 16).to(torch.float8_e4m3fn),
        "global_scale": torch.ones(1, n),
        "table": formats.E2M1_VALUES,
    }
    return {name: as_declared(launch, name, bank[name]) for name, _ in launch.arguments if name in bank}


def _near_and_far(ends: Callable[[int], torch.Tensor], far: int = FAR + 1, near: int = 4) -> None:
    """`ends`(count): what becomes of the first and the last of so many rows."""
    judge.bitwise(ends(far), ends(near))


@pytest.mark.fault("sgl-project/sglang#4727")
@pytest.mark.parametrize("stage", ["gate_up", "down"])
@pytest.mark.parametrize("kernel", W4A16)
def test_grouped_gemms(kernel: str, stage: str):
    """gate_up loads far rows, down stores them."""
    shape = shape_of("far apart", kernel)
    k, n = (DISTANCE, NARROW) if stage == "gate_up" else (shape.intermediate, DISTANCE)
    launch = _in_few_steps(plan_layer(CARD, shape, 2, kernel=kernel).launch(stage), k, n)
    tiles = -(-n // launch.constexpr("BLOCK_N"))

    def ends(routes: int) -> torch.Tensor:
        if kernel == DECODE:
            programs = _ends(routes, tiles)
            routed = {"topk_ids": torch.zeros(routes, dtype=torch.int32), "experts": 1}
        else:
            programs = {"numbers": list(range(tiles)), "of": tiles}
            block = torch.full((1, launch.constexpr("BLOCK_M")), routes, dtype=torch.int32)
            block[0, :2] = torch.tensor([0, routes - 1])
            routed = {"block_routes": block, "block_expert": torch.zeros(1, dtype=torch.int32), "routes": routes}
        x, out = _rows(routes, k), torch.empty(routes, n, dtype=torch.bfloat16)
        sizes = {"N": n, "k_units": k // launch.constexpr("K_UNIT"), "rows_per_input": 1}
        rest = {**_weights(launch, n, k), **routed, **sizes, "topk_weights": torch.ones(routes)}
        with _programs(**programs), checked_addresses():
            start(launch, (len(programs["numbers"]),), x=x, out=out, **rest)
        return out[[0, -1]]

    _near_and_far(ends)


@pytest.mark.fault("sgl-project/sglang#4727")
@pytest.mark.parametrize("far", ["loads", "stores"])
@pytest.mark.parametrize(("m", "split_k"), [(1, "auto"), (3, 1)], ids=["gemv", "gemm"])
def test_linear_layers(m: int, split_k, far: str):
    k, n = (DISTANCE, NARROW) if far == "loads" else (NARROW, DISTANCE)
    (planned,) = plan_linear(CARD, m, n, k, split_k=split_k).launches
    launch = _in_few_steps(planned, k, n)
    block_m = dict(launch.constexprs).get("BLOCK_M", 1)

    def ends(rows: int) -> torch.Tensor:
        tiles = -(-n // launch.constexpr("BLOCK_N"))
        programs = _ends(-(-rows // block_m), tiles)
        x, out = _rows(rows, k), torch.empty(rows, n, dtype=torch.bfloat16)
        sizes = {"M": rows, "N": n, "k_units": k // launch.constexpr("K_UNIT")}
        sizes = {name: size for name, size in sizes.items() if name in dict(launch.arguments)}
        with _programs(**programs), checked_addresses():
            start(launch, (len(programs["numbers"]), 1), x=x, out=out, **_weights(launch, n, k), **sizes)
        return out[[0, -1]]

    _near_and_far(ends, near=max(4, block_m + 1))


@pytest.mark.fault("sgl-project/sglang#4727")
@pytest.mark.parametrize("stage", ["weigh_input", "activation", "sum_routes"])
def test_pointwise_launches(stage: str):
    """What is far: the output of the first, the two halves that the second reads, the routes that the third adds up."""
    plan = plan_layer(CARD, LAYER, 2, weight_on_input=True)
    launch = _in_few_steps(plan.launch(stage))
    columns = DISTANCE // 2 if stage == "activation" else DISTANCE

    def ends(routes: int) -> torch.Tensor:
        rows = routes // 2 if stage == "sum_routes" else routes
        out = torch.empty(rows, columns, dtype=torch.bfloat16)
        ids = {"topk_ids": torch.zeros(routes, dtype=torch.int32), "experts": 1}
        given = {
            "weigh_input": lambda: {"x": _rows(routes // 2, columns), "topk_weights": torch.ones(routes), "top_k": 2},
            "activation": lambda: {"gate_up": _rows(routes, 2 * columns), "alpha": 1.702, "limit": 7.0, **ids},
            "sum_routes": lambda: {"route_out": _rows(routes, columns), "top_k": 2, **ids},
        }[stage]()
        with _programs(**_ends(rows)), checked_addresses():
            start(launch, (2, -(-columns // launch.constexpr("BLOCK"))), out=out, columns=columns, **given)
        return out[[0, -1]]

    _near_and_far(ends, far=FAR + 2, near=8)
