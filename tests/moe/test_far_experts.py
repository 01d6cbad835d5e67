"""Experts, and parts of K, that begin beyond 2^31 elements: they give what the same ones nearby give.

Seen in sgl-project/sglang#4727, of rows; see test_far_rows.py. Memory is provided for what is touched alone, and no
swap is set aside for the rest, so that tensors may be larger than the host.
"""

import math
import mmap
from dataclasses import replace

import pytest
import torch

from nvfp4_suite.contract.case import hashed
from nvfp4_suite.kernels.decode import NAME as DECODE
from nvfp4_suite.kernels.launch import Launch, start
from nvfp4_suite.kernels.linear_plan import plan_linear
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.w4a4 import DEFAULT as W4A4
from nvfp4_suite.reference import formats

from ..addresses import checked_addresses
from .edges import shape_of
from .gate_up import CARD, W4A16
from .test_far_rows import DISTANCE, NARROW, _in_few_steps, _programs

NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux, which older Pythons do not name
# Bytes of packed weights of one expert are 2^17, or words of eight codes 2^15: the last expert begins at 2^31 of them.
FAR = {DECODE: 2**16}
ELSE_FAR = 2**14


def unbacked(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros, without memory until they are written to."""
    size = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def bank(experts: int, n: int, k: int) -> dict[str, torch.Tensor]:
    """Packed weights, block scales and globals, of which the first and the last expert's are filled, both alike."""
    found = {
        "packed": unbacked(experts, n, k // 2, dtype=torch.uint8),
        "scale": unbacked(experts, n, k // 16, dtype=torch.uint8),
        "global_scale": unbacked(experts, n, dtype=torch.float32),
    }
    found["packed"][[0, -1]] = (hashed("far experts/packed", n, k // 2) & 0xFF).to(torch.uint8)
    found["scale"][[0, -1]] = (0x30 + (hashed("far experts/scale", n, k // 16) & 0xF)).to(torch.uint8)
    found["global_scale"][[0, -1]] = 0.5 + torch.arange(n) / n
    return found


def values(*shape: int) -> torch.Tensor:
    return ((hashed("far experts/x", *shape) >> 8) % 15 - 7).to(torch.bfloat16)


def of_last_expert(kernel: str, stage: str, experts: int) -> torch.Tensor:
    """What two routes of the last of `experts` come to."""
    shape = shape_of("far apart", kernel)
    k, n = (DISTANCE, NARROW) if stage == "gate_up" else (max(NARROW, shape.intermediate), DISTANCE)
    plan = plan_layer(CARD, shape, 2, kernel=kernel, input_scales=kernel == W4A4)
    launch = _in_few_steps(plan.launch(stage), k, n)
    kinds, weights = dict(launch.arguments), bank(experts, n, k)
    weights["scale"] = weights["scale"].view(torch.float8_e4m3fn) if kinds["scale"] == "*fp8e4nv" else weights["scale"]
    weights["packed"] = weights["packed"].view(torch.int32) if kinds["packed"] == "*i32" else weights["packed"]
    out = torch.empty(2, n, dtype=torch.bfloat16)
    last = experts - 1
    block = torch.full((1, dict(launch.constexprs).get("BLOCK_M", 1)), 2, dtype=torch.int32)
    block[0, : min(2, block.shape[1])] = torch.arange(min(2, block.shape[1]), dtype=torch.int32)
    given = {
        **weights,
        "alpha": weights["global_scale"],
        "table": formats.E2M1_VALUES,
        "x": values(2, k),
        "topk_weights": torch.ones(2),
        "topk_ids": torch.full((2,), last, dtype=torch.int32),
        "experts": experts,
        "block_routes": block,
        "block_expert": torch.tensor([last], dtype=torch.int32),
        "routes": 2,
        "blocks": 1,
        "out": out,
        "N": n,
        "k_units": k // launch.constexpr("K_UNIT"),
        "rows_per_input": 1,
        "rows_per_output": 1,
    }
    if kernel == W4A4 and stage == "gate_up":  # of as many columns as there are pairs of weight rows
        out, given["stored"] = torch.zeros(2, n // 4, dtype=torch.uint8), torch.full((1,), 2.0**-10)
        limits = {"activation_alpha": 1.702, "activation_limit": 7.0}
        given |= {"out": out, "out_scale": torch.empty(2, n // 32, dtype=torch.uint8), "N": n // 2, **limits}
    if kernel == W4A4:
        given["x"] = (hashed("far experts/codes", 2, k // 2) & 0xFF).to(torch.uint8)
        given["x_scale"] = torch.full((2, k // 16), 0x38, dtype=torch.uint8).view(weights["scale"].dtype)
    with checked_addresses():
        blocks = (2 if kernel == DECODE else 1) * -(-given["N"] // launch.constexpr("BLOCK_N"))
        start(launch, (blocks,), **{name: given[name] for name in kinds})
    return out


@pytest.mark.fault("sgl-project/sglang#4727")
@pytest.mark.parametrize("stage", ["gate_up", "down"])
@pytest.mark.parametrize("kernel", [*W4A16, W4A4])
def test_the_last_of_many_experts(kernel: str, stage: str):
    far, near = (of_last_expert(kernel, stage, experts + 1) for experts in (FAR.get(kernel, ELSE_FAR), 1))
    assert near.count_nonzero() > near.numel() / 2
    assert torch.equal(far.view(torch.uint8), near.view(torch.uint8))


ROWS, COLUMNS = 2**16, 2**15  # of one part's sums: the second part begins at 2^31


def parts_of(rows: int) -> torch.Tensor:
    """fp32 [2, 16, 64]: the first sums of both parts of K, of `rows` rows, of which 16 are there."""
    launch = plan_linear(CARD, 16, COLUMNS, 64, split_k=2).launch("gemm")
    out = unbacked(2, rows, COLUMNS, dtype=torch.float32)
    weights = {name: tensor[0] for name, tensor in bank(1, COLUMNS, 64).items()}
    if dict(launch.arguments)["scale"] == "*fp8e4nv":
        weights["scale"] = weights["scale"].view(torch.float8_e4m3fn)
    launch = _in_two_steps(launch)
    sizes = {"M": rows, "N": COLUMNS, "k_units": 64 // launch.constexpr("K_UNIT")}
    with _programs([0], of=COLUMNS // launch.constexpr("BLOCK_N")), checked_addresses():
        start(launch, (1, 2), x=values(16, 64), out=out, **weights, **sizes)
    return out[:, :16, : launch.constexpr("BLOCK_N")].clone()


def _in_two_steps(launch: Launch) -> Launch:
    return replace(launch, constexprs=tuple((n, 16 if n == "BLOCK_KB" else v) for n, v in launch.constexprs))


@pytest.mark.fault("sgl-project/sglang#4727")
def test_the_second_part_of_many_rows():
    far, near = parts_of(ROWS), parts_of(16)
    assert near[1].count_nonzero() > 500
    assert torch.equal(far, near)


@pytest.mark.fault("sgl-project/sglang#4727")
def test_the_sum_with_a_second_part_of_many_rows():
    launch = plan_linear(CARD, 16, COLUMNS, 64, split_k=2).launch("sum_splits")

    def summed(rows: int) -> torch.Tensor:
        partial, out = unbacked(2, rows, COLUMNS, dtype=torch.float32), torch.empty(1, COLUMNS, dtype=torch.bfloat16)
        partial[:, 0, :64] = values(2, 64).float()
        sizes = {"M": rows, "N": COLUMNS, "splits": 2}
        with checked_addresses():
            start(launch, (1, 1), partial=partial, global_scale=torch.ones(COLUMNS), out=out, **sizes)
        return out[0, :64].clone()

    assert torch.equal(summed(ROWS), summed(1))
    assert torch.equal(summed(1), values(2, 64).float().sum(0).to(torch.bfloat16))
