"""Useful work, shares of what was measured, and MFU: against figures worked out by hand, and those of the seed."""

import pytest

from nvfp4_suite.bench import roofline
from nvfp4_suite.bench.roofline import Rates, Work
from nvfp4_suite.contract.banks import ExpertBanks
from nvfp4_suite.contract.case import Case, random_inputs
from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape

SHAPE = LayerShape(8, 2, 64, 32)


def test_flops_are_those_of_routed_rows():
    flops = {stage: roofline.work(stage, SHAPE, 5, 4).flops for stage in roofline.STAGES}
    gate_up, down = 2 * 5 * 2 * (2 * 32) * 64, 2 * 5 * 2 * 32 * 64
    assert flops == {
        "layer": gate_up + down,
        "gate_up": gate_up,
        "down": down,
        "activation": 0,
        "sum": 0,
        "align": 0,
    }


def test_a_layer_moves_the_banks_that_are_hit_and_its_tokens():
    banks = random_inputs(Case(SHAPE, 1, inputs="random")).banks
    whole = sum(tensor.nbytes for _, tensor in banks.tensors())
    assert isinstance(banks, ExpertBanks)
    tokens = 5 * (2 * 64 * 2 + 2 * 8)  # in and out of 16 bits; an id and a weight for each route
    assert roofline.work("layer", SHAPE, 5, 8).moved == whole + tokens
    assert roofline.work("layer", SHAPE, 5, 3).moved == whole * 3 // 8 + tokens


def test_stages_move_what_goes_in_and_out():
    routes = 10
    assert roofline.work("activation", SHAPE, 5, 8).moved == routes * (3 * 32 * 2 + 4)
    assert roofline.work("sum", SHAPE, 5, 8).moved == (routes + 5) * 64 * 2 + routes * 4
    bank = 4 * 64 * (32 + 4 + 4)  # rows of 64: codes, scales, global
    assert roofline.work("gate_up", SHAPE, 5, 4).moved == bank + (5 * 64 + routes * 64) * 2 + routes * 4


def test_a_gate_up_that_applies_the_activation_stores_half():
    plain, fused = (roofline.work(stage, SHAPE, 5, 4) for stage in ("gate_up", roofline.FUSED))
    assert fused.flops == plain.flops and plain.moved - fused.moved == 10 * 32 * 2


def test_the_larger_time_is_the_roofline():
    work, rates = Work(flops=100.0, moved=30.0), Rates(matrix=100.0, copy=10.0)
    found = roofline.shares(work, seconds=4.0, rates=rates)
    assert (found.matrix, found.memory) == (0.25, 0.75)
    assert (found.roofline, found.bound) == (0.75, "memory")
    assert roofline.shares(Work(100.0, 1.0), 4.0, rates).bound == "matrix"


# FreeToken's table at T = 8192 on an RTX PRO 6000 and an RTX 5090: microseconds, TFLOP/s, MFU in percent.
PRO, GEFORCE = "NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA GeForce RTX 5090"
SEED = [
    (PRO, "Qwen3.6-35B-A3B", 677, 609, 33),
    (PRO, "GLM-4.7", 3341, 926, 49),
    (PRO, "MiniMax-M3", 4055, 915, 49),
    (GEFORCE, "Qwen3.6-35B-A3B", 679, 607, 36),
    (GEFORCE, "GLM-5.3-Flash", 3814, 865, 52),
]


@pytest.mark.parametrize(("gpu", "name", "microseconds", "tflops", "percent"), SEED)
def test_mfu_is_the_seeds(gpu, name, microseconds, tflops, percent):
    work = roofline.work("layer", CHECKPOINTS[name], 8192, CHECKPOINTS[name].experts)
    assert round(work.flops / microseconds / 1e6) == pytest.approx(tflops, abs=1)
    assert round(100 * roofline.mfu(work, microseconds / 1e6, gpu, "fp4")) == percent


def test_mfu_is_none_where_there_is_no_peak():
    work = Work(1e12, 1.0)
    assert roofline.mfu(work, 1.0, PRO, "bf16") is None
    assert roofline.mfu(work, 1.0, "NVIDIA L40S", "bf16") is None
    assert roofline.mfu(Work(0, 1.0), 1.0, "NVIDIA H200", "bf16") is None
    assert roofline.mfu(work, 1.0, "NVIDIA H200", "bf16") == pytest.approx(1 / 989)


@pytest.mark.parametrize(
    "gpu",
    ["NVIDIA H200 NVL", "NVIDIA H100 PCIe", "NVIDIA GeForce RTX 5090 D", "NVIDIA GeForce RTX 5090 Laptop GPU"],
)
def test_a_card_of_a_like_name_has_no_peak_of_another(gpu):
    assert roofline.peak(gpu, "bf16") is None and roofline.peak(gpu, "fp4") is None


def test_unquantized_gemms_move_four_times_the_codes():
    found = roofline.unquantized(SHAPE, "gate_up", 5, 4)
    assert found.flops == roofline.work("gate_up", SHAPE, 5, 4).flops
    assert found.moved == 4 * 64 * 64 * 2 + 10 * (64 + 64) * 2
    both = [roofline.unquantized(SHAPE, stage, 5, 4) for stage in ("gate_up", "down", "layer")]
    assert both[2].moved == both[0].moved + both[1].moved
