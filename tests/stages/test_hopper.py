"""What surrounds wgmma in the W4A16 kernel for sm_90: its order of K, and the source by which it decodes weights."""

import itertools
import re
from dataclasses import replace

import pytest
import torch

from nvfp4_suite.contract.case import Case, random_inputs, torch_dtype
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import experts, hopper, hopper_banks, hopper_layer, pointwise
from nvfp4_suite.kernels.device.hopper_decode import LACKING, ROWS, SCALE_BF16, SCALE_FP16, STEP, decode_source
from nvfp4_suite.kernels.device.w4a16_hopper import weight_rows, widths_of
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.reference import formats, judge

from ..moe.subject import run_plan
from ..poison import poisoned_allocations

H200 = Gpu("NVIDIA H200", (9, 0))


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("columns", [64, 512, 704, 2816])
def test_activations_are_interleaved(columns, dtype, device):
    x = torch.randn(5, columns, generator=torch.Generator().manual_seed(columns)).to(torch_dtype(dtype))
    with poisoned_allocations():
        found = hopper_layer.interleave_k(pointwise.interleave_k(dtype), x.to(device)).cpu()
    judge.bitwise(found, x[:, [hopper.k_of_position(position) for position in range(columns)]])


def test_columns_that_no_order_fits_are_refused(device):
    x = torch.zeros(1, 96, dtype=torch.bfloat16, device=device)
    with pytest.raises(ValueError, match="columns is 96, but should be a multiple of 64 in interleave_k"):
        hopper_layer.interleave_k(pointwise.interleave_k("bf16"), x)


@pytest.mark.parametrize(
    ("k", "rows", "message"),
    [
        (1088, 512, "K is 1088, but should be 0 steps of 64 more than a multiple of 8, and at least 6"),
        (2048, 96, "N is 48, but should be a multiple of 64 in gate_up"),
    ],
)
def test_sizes_that_a_launch_is_not_compiled_for_are_refused(k, rows, message, device):
    launch = plan_layer(H200, LayerShape(2, 1, 2048, 512), 8, kernel=hopper.NAME).launch("gate_up")
    bank = (
        torch.zeros(2, rows, k // 2, dtype=torch.uint8),
        torch.zeros(2, rows, k // 16, dtype=torch.uint8),
        torch.ones(2),
    )
    with pytest.raises(ValueError, match=message):
        hopper_layer.gate_up(launch, torch.zeros(1, k, dtype=torch.bfloat16), bank, (1, {"routes": 1}))


def test_a_plan_for_sm_90_is_refused_elsewhere_before_anything_runs():
    """Here, the interpreter; a plan is data, and may come from another host."""
    case = Case(LayerShape(2, 2, 256, 256), 5, inputs="random")
    plan = plan_layer(H200, case.shape, case.tokens, kernel=hopper.NAME)
    with pytest.raises(ValueError, match=r"plan is prefill_w4a16_hopper's for sm_90, .* on cpu: it needs sm_90"):
        run_plan(plan, case, "cpu")


@pytest.mark.parametrize("piece", [1, 2**26], ids=["a tile at once", "all at once"])
@pytest.mark.parametrize("gated", [False, True])
def test_a_prepared_bank_has_each_tile_and_step_in_one_piece(gated, piece, monkeypatch):
    """Row `weight_rows` of a tile at its place, in the bytes that a program copies at once; codes' bits are moved."""
    monkeypatch.setattr(hopper_banks, "PIECE", piece)
    bank = random_inputs(Case(LayerShape(2, 1, 256, 320), 1, inputs="random")).banks
    prepared = hopper_banks.rearranged(bank)
    name, tiles = ("gate_up", 320 // 64) if gated else ("down", 256 // 128)
    for kind, step in (("packed", 32), ("scale", 4)):
        plain, found = (getattr(one, f"{name}_{kind}").view(torch.uint8) for one in (bank, prepared))
        plain = hopper_banks.moved(plain) if kind == "packed" else plain
        steps = plain.shape[2] // step
        found = found.view(2, tiles, steps, 128, step)
        for tile, at, place in itertools.product(range(tiles), (0, steps - 1), (0, 1, 8, 9, 77, 127)):
            row = plain[1, weight_rows.fn(place, tile, 320, gated)].view(steps, step)
            assert torch.equal(found[1, tile, at, place], row[at])


@pytest.mark.parametrize("gated", [False, True])
def test_every_row_is_in_one_tile(gated):
    found = [weight_rows.fn(place, tile, 384 // 2, gated) for tile in range(3) for place in range(128)]
    assert sorted(found) == list(range(384))


def test_banks_are_read_as_they_are_where_no_kernel_wants_them_prepared():
    case = Case(LayerShape(2, 2, 256, 256), 5, inputs="random")
    banks = random_inputs(case).banks
    assert experts.prepared(banks) is banks


def test_prepared_banks_are_refused_by_plans_for_others_and_others_by_plans_for_them():
    case = Case(LayerShape(2, 2, 256, 256), 5, inputs="random")
    inputs = random_inputs(case)
    prepared = hopper_banks.rearranged(inputs.banks)
    assert type(prepared.to("cpu")) is type(prepared.without_input_scales()) is hopper_banks.PreparedBanks
    rows = inputs.topk_weights, inputs.topk_ids
    for name, banks, wanted in (
        (hopper.NAME, prepared, "ExpertBanks"),
        (hopper.PREPARED, inputs.banks, "PreparedBanks"),
    ):
        plan = plan_layer(H200, case.shape, case.tokens, kernel=name)
        message = f"banks are {type(banks).__name__}, but should be {wanted} for {name}"
        with pytest.raises(ValueError, match=message):
            experts.run(plan, inputs.hidden_states, banks, *rows)


def test_a_plan_whose_gemms_read_different_banks_is_refused():
    case = Case(LayerShape(2, 2, 256, 256), 5, inputs="random")
    inputs = random_inputs(case)
    plain, prepared = (plan_layer(H200, case.shape, case.tokens, kernel=name) for name in hopper.NAMES)
    launches = (prepared.launch("down") if one.stage == "down" else one for one in plain.launches)
    mixed = replace(plain, launches=tuple(launches))
    with pytest.raises(ValueError, match="plan reads ExpertBanks in gate_up, but PreparedBanks in down"):
        experts.run(mixed, inputs.hidden_states, inputs.banks, inputs.topk_weights, inputs.topk_ids)


def test_auto_is_the_kernel_for_prepared_banks_or_none():
    """On the CPU, where it cannot be, its plan is the default kernel's, which reads no such banks."""
    case = Case(LayerShape(2, 2, 256, 256), 5, inputs="random")
    inputs = random_inputs(case)
    banks = hopper_banks.rearranged(inputs.banks)
    with pytest.raises(
        ValueError, match="banks are PreparedBanks, but should be ExpertBanks for prefill_w4a16_prepared"
    ):
        experts.fused_experts(inputs.hidden_states, banks, inputs.topk_weights, inputs.topk_ids)


def test_plans_and_kernels_mean_the_same_sizes():
    assert (ROWS.value, STEP.value) == (hopper.ROWS, hopper.K_UNIT)
    for tile in (hopper.SMALL, hopper.LARGE):
        assert (
            widths_of(tile.block_m) == hopper.widths(tile.block_m) and hopper.widths(tile.block_m)[-1] == tile.block_m
        )


def run(source: str, word: torch.Tensor, pair: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """What PTX of shl, shr, and, or, mul makes of `word` ($4) and `pair` ($12), int64 of 32 bits: $0 to $3."""
    values = {"$4": word, "$12": pair}
    for name, to, *operands in re.findall(r"([a-z0-9.]+) ([$\w]+), ([$\w]+), ([$\w]+);", source):
        first, second = (values[one] if one in values else int(one, 0) for one in operands)
        operation = name.split(".")[0]
        if name.endswith("x2"):
            found = [_half(first, place, dtype) * _half(second, place, dtype) for place in (0, 16)]
            values[to] = torch.stack(found, -1)
        else:
            done = {"shl": lambda a, b: a << b, "shr": lambda a, b: a >> b}
            done |= {"and": lambda a, b: a & b, "or": lambda a, b: a | b, "mul": lambda a, b: a * b}
            values[to] = done[operation](first, second) & 0xFFFFFFFF
    return [values[f"${place}"] for place in range(4)]


def _half(word: torch.Tensor, place: int, dtype: torch.dtype) -> torch.Tensor:
    return (word >> place).to(torch.int16).view(dtype)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize(("dtype", "factor"), [("bf16", SCALE_BF16), ("fp16", SCALE_FP16)])
def test_every_code_in_every_place_times_every_scale_is_decoded(dtype, factor, prepared):
    """In PTX, as a GPU runs it, but here: weight * 2^-7, and of each pair codes s and s + 4 of the word."""
    dtype = torch_dtype(dtype)
    scales = torch.arange(256, dtype=torch.uint8)
    scales = scales[(scales & 0x7F) != 0x7F]
    scale = (formats.decode_e4m3(scales) * factor.value).to(dtype)
    bits = scale.view(torch.int16).to(torch.int64) & 0xFFFF
    codes = (torch.arange(16)[:, None] + 3 * torch.arange(8)) % 16  # each code in each place
    word = (codes << 4 * torch.arange(8)).sum(1)
    if prepared:
        word = hopper_banks.moved(word.to(torch.int32).view(torch.uint8)).view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    words, pairs = torch.meshgrid(word, bits | bits << 16, indexing="ij")
    found = torch.stack(
        run(decode_source(dtype == torch.bfloat16, prepared), words, pairs, dtype), -1
    )  # [16, scales, pair, s]
    wanted = formats.decode_e2m1(codes.to(torch.uint8))[:, None] * formats.decode_e4m3(scales)[None, :, None]
    wanted = (wanted / LACKING.value).to(dtype).unflatten(-1, (2, 4))
    judge.bitwise(found, wanted)
