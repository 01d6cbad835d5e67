"""The order of K of the W4A16 kernel for sm_90: what decodes weights and what stores activations have one, hopper.py's.

test_hopper.py holds the launch before gate_up to it.
"""

from itertools import product

import pytest
import torch

from nvfp4_suite.contract.case import torch_dtype
from nvfp4_suite.kernels import hopper
from nvfp4_suite.kernels.device.hopper_decode import LACKING, ROWS, STEP, decode, decoded_layout
from nvfp4_suite.kernels.device.w4a16_hopper import store_tile, weight_rows
from nvfp4_suite.kernels.hopper_banks import moved
from nvfp4_suite.reference import formats, judge

from ..linear.layer import random
from .gluon_on_torch import Pointer, Shared, Sums, on_torch
from .test_hopper import run

ORDER = [hopper.k_of_position(position) for position in range(hopper.K_UNIT)]


def assembled(source: str, _registers: str, operands: list[torch.Tensor], dtype: torch.dtype, *_) -> torch.Tensor:
    """What gl.inline_asm_elementwise makes of `operands` [..., 4, 2]: eight at a time, of one word and pair."""
    codes, factor = (tensor[..., 0, 0] for tensor in operands)
    bits = factor.view(torch.int16).to(torch.int64) & 0xFFFF
    found = run(source, codes.to(torch.int64) & 0xFFFFFFFF, bits | bits << 16, dtype)
    return torch.stack(found, -2)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_decoded_step_has_each_position_the_weight_that_its_activation_is_for(dtype, prepared):
    weights = random(1, ROWS.value, STEP.value, dtype)
    packed = moved(weights.packed) if prepared else weights.packed
    words = packed.view(torch.int32).view(ROWS.value, 4, 2)
    decoded = on_torch(decode, inline_asm_elementwise=assembled)
    found = decoded(Shared(words), Shared(weights.scale), torch_dtype(dtype), prepared, None, None)
    codes, scale = formats.unpack(weights.packed), formats.decode_e4m3(weights.scale.view(torch.uint8))
    wanted = formats.decode_e2m1(codes) * scale.repeat_interleave(16, 1) / LACKING.value
    judge.bitwise(found, wanted[:, ORDER].to(torch_dtype(dtype)))


@pytest.mark.parametrize("warps", [4, 8])
def test_each_thread_decodes_what_wgmma_reads_there(warps):
    """Of wgmma's first operand, by the PTX ISA, lane l has rows l / 4 and + 8, and k 2 (l % 4), + 1, + 8 and + 9."""
    layout = decoded_layout(warps)
    for warp, lane in product(range(warps), range(32)):
        rows = [64 * part + 16 * warp + lane // 4 + add for part in range(8 // warps) for add in (0, 8)]
        places = [16 * s + 2 * (lane % 4) + add for s in range(4) for add in (0, 1, 8, 9)]
        assert _of_thread(layout, warp, lane) == {(row, ORDER[place]) for row, place in product(rows, places)}
    # Eight elements that PTX makes at once: of one word, both of a pair and then the next pair.
    assert layout.reg_bases[:3] == [[0, 0, 0, 0, 1], [0, 0, 0, 1, 0], [0, 0, 0, 2, 0]]


def _of_thread(layout, warp: int, lane: int) -> set[tuple[int, int]]:
    """(row, k) of all registers of a thread; an element [row, t, h, s, j] is code s + 4 j of word h of thread t."""
    return {(row, 16 * t + 8 * h + 4 * j + s) for row, t, h, s, j in of_thread(layout, warp, lane)}


def of_thread(layout, warp: int, lane: int) -> list[list[int]]:
    """The elements that all registers of a thread have of a tensor of a linear layout."""
    first = _chosen(lane, layout.lane_bases) + _chosen(warp, layout.warp_bases)
    registers = range(2 ** len(layout.reg_bases))
    none = [0] * len(layout.shape)
    return [_sum([none, *first, *_chosen(register, layout.reg_bases)]) for register in registers]


def _chosen(bits: int, bases: list[list[int]]) -> list[list[int]]:
    return [base for place, base in enumerate(bases) if bits >> place & 1]


def _sum(bases: list[list[int]]) -> list[int]:
    return [sum(column) for column in zip(*bases, strict=True)]


@pytest.mark.parametrize("gated", [True, False], ids=["gate_up", "down"])
@pytest.mark.parametrize("tile", [0, 2])
def test_a_tile_stores_its_rows_where_the_next_launch_wants_them(tile, gated):
    """gate_up has at each position what the weights of down are for there; what down stores is in order.

    Sums are the numbers of their rows among the expert's, and the activation is the pair of both.
    """
    width, n, expert = 8, 3 * ROWS.value, 1
    rows = on_torch(weight_rows)(torch.arange(ROWS.value), tile, n, gated)
    acc = (rows[:, None] / LACKING.value).expand(-1, width).float().as_subclass(Sums)
    factors = Pointer(torch.ones(4 * n)), Pointer(torch.ones(width))
    place = Pointer(torch.arange(width)), expert * n, tile
    out = torch.full((width, n), -1.0)
    stored = on_torch(store_tile, rounded_pair=lambda *pair: pair[:2], activate=lambda gate, up, *_: 4 * n * up + gate)
    buffers = [Shared(torch.empty(width, 64)) for _ in range(2)]
    stored(acc, factors, Pointer(out), place, (n, None, width, None), (0, 0), buffers, "pair" if gated else None, True)
    first, columns = (tile * 64, 64) if gated else (tile * ROWS.value, ROWS.value)
    k = torch.arange(first, first + columns)
    if gated:
        k = torch.tensor([hopper.k_of_position(position) for position in k])
    wanted = torch.full((width, n), -1.0)
    wanted[:, first : first + columns] = 4 * n * (k + n) + k if gated else k
    assert torch.equal(out, wanted)
