"""The tuning records: every threshold and tile that their sources state, with the sentence that states it."""

import pytest

from nvfp4_suite.contract.gpu_names import CLASSES, DATA_CENTER, RTX_PRO, speed_class
from nvfp4_suite.contract.gpu_names import GEFORCE as GEFORCE_CLASS
from nvfp4_suite.contract.gpu_names import H20 as H20_CLASS
from nvfp4_suite.contract.gpus import CATALOG, PORTABLE, Gpu
from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape
from nvfp4_suite.kernels.launch import Launch
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.tuning import RECORDS, tuning_of

H100 = Gpu("NVIDIA H100 80GB HBM3", (9, 0))
A100 = Gpu("NVIDIA A100-SXM4-80GB", (8, 0))
H20 = Gpu("NVIDIA H20", (9, 0))
PRO_6000 = Gpu("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0))
A6000 = Gpu("NVIDIA RTX A6000", (8, 6))
L40S = Gpu("NVIDIA L40S", (8, 9))
RTX_3080_TI = Gpu("NVIDIA GeForce RTX 3080 Ti", (8, 6))
RTX_4090 = Gpu("NVIDIA GeForce RTX 4090", (8, 9))
RTX_5090 = Gpu("NVIDIA GeForce RTX 5090", (12, 0))
UNKNOWN = Gpu("NVIDIA X2", (9, 0))

ONE = LayerShape(1, 1, 2048, 512)  # one expert: tokens are tokens per expert
QWEN = CHECKPOINTS["Qwen3.6-35B-A3B"]


def _gemm(gpu: Gpu, tokens_per_expert: int, stage: str = "gate_up", shape: LayerShape = ONE) -> Launch:
    return plan_layer(gpu, shape, tokens_per_expert, kernel="prefill").launch(stage)


# FreeToken#723: "128 at 64 or more, 64 at 24, 32 at 12, else 16". "rho sets the BLOCK_SIZE_M thresholds on tokens per
# expert: (12, 24, 64) for rho >= 8 (unchanged), (16, 36, 150) for RTX PRO, (16, 150, never 128) for GeForce." "H100,
# H20 and A100 keep the PR's tiles." "An unknown name logs a warning and uses 4." FreeToken's "pipeline the nvfp4
# prefill scale loads": "GeForce sm_86: BLOCK_SIZE_M 64 from 100 tokens per expert (was 150). sm_89 keeps 150".
BY_RHO = [(H100, (12, 24, 64)), (A100, (12, 24, 64)), (PRO_6000, (16, 36, 150)), (H20, (16, 36, 150))]
BY_RHO += [(A6000, (16, 36, 150)), (L40S, (16, 36, 150)), (UNKNOWN, (16, 36, 150))]
GEFORCE = [(RTX_3080_TI, (16, 100)), (RTX_4090, (16, 150)), (RTX_5090, (16, 150))]


@pytest.mark.parametrize(("gpu", "thresholds"), BY_RHO + GEFORCE, ids=lambda value: getattr(value, "name", None))
def test_block_m_changes_at_the_stated_tokens_per_expert(gpu, thresholds):
    blocks = {least - 1: block for least, block in zip(thresholds, (16, 32, 64), strict=False)}
    blocks |= {least: block for least, block in zip(thresholds, (32, 64, 128), strict=False)}
    blocks |= {1: 16, 32768: (64, 128)[len(thresholds) - 2]}
    assert {at: _gemm(gpu, at).constexpr("BLOCK_M") for at in blocks} == blocks


@pytest.mark.parametrize("gpu", [H100, H20, A100], ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("tokens", [1, 30, 50, 200])
def test_h100_h20_and_a100_have_one_tile_in_all_blocks(gpu, tokens):
    """FreeToken#723: "It uses BLOCK_N 64, 4 warps and 3 stages"; "H100, H20 and A100 keep the PR's tiles"."""
    assert _sizes(_gemm(gpu, tokens)) == (64, 32, 4, 3)


@pytest.mark.parametrize("gpu", [PRO_6000, A6000, L40S, RTX_3080_TI, RTX_4090, RTX_5090], ids=lambda gpu: gpu.name)
def test_rtx_cards_have_other_tiles_in_small_blocks(gpu):
    """FreeToken#723: "KB 64 and N 128 at small blocks"; "cc 8.6 / 8.9 / 12.0 use the RTX PRO or GeForce tile table"."""
    assert [_sizes(_gemm(gpu, tokens)) for tokens in (1, 30)] == [(128, 64, 4, 3)] * 2
    assert _sizes(_gemm(gpu, 200))[:2] == (64, 32)


def _sizes(launch: Launch) -> tuple[int, ...]:
    return (launch.constexpr("BLOCK_N"), launch.constexpr("BLOCK_KB"), launch.num_warps, launch.num_stages)


@pytest.mark.parametrize("gpu", [RTX_3080_TI, RTX_4090], ids=lambda gpu: gpu.name)
@pytest.mark.parametrize(
    ("k", "tokens", "words", "warps"),
    [
        (2048, 200, True, 8),
        (1984, 200, True, 4),
        (64, 200, True, 4),
        (2080, 200, False, 4),
        (2064, 200, False, 4),
        (2048, 99, False, 4),
    ],
)
def test_geforce_loads_words_of_scales_in_blocks_of_64(gpu, k, tokens, words, warps):
    """FreeToken's "pipeline the nvfp4 prefill scale loads": "GeForce sm_86 / sm_89: SCALE_WORDS on BLOCK_SIZE_M 64
    GEMMs with K % 64 == 0 [...]; 8 warps when K >= 2048 (gate_up), 4 otherwise".
    """
    for stage, shape in (("gate_up", LayerShape(1, 1, k, 512)), ("down", LayerShape(1, 1, 512, k))):
        launch = _gemm(gpu, tokens, stage, shape)
        assert (launch.constexpr("SCALE_WORDS"), launch.num_warps) == (words, warps)


@pytest.mark.parametrize("gpu", [*CATALOG, PORTABLE, UNKNOWN], ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("tokens", [1, 30, 50, 200])
def test_no_other_card_loads_words_of_scales(gpu, tokens):
    """The same: "SCALE_WORDS constexpr (default off)", "All other GPUs get the same configs as before"."""
    geforce = any(name in gpu.name for name in ("RTX 3080 Ti", "RTX 3090", "RTX 4090", "L40")) and gpu != L40S
    assert _gemm(gpu, tokens).constexpr("SCALE_WORDS") == (geforce and tokens == 200)


@pytest.mark.parametrize(
    ("shape", "tokens"),
    [(QWEN, 40), (CHECKPOINTS["GLM-4.7"], 25), (CHECKPOINTS["Qwen3.8-Flash"], 64), (CHECKPOINTS["MiniMax-M3"], 40)],
)
@pytest.mark.parametrize("gpu", [*CATALOG, PORTABLE], ids=lambda gpu: gpu.name)
def test_auto_decodes_up_to_one_and_a_quarter_tokens_per_expert(gpu, shape, tokens):
    """Measured on an H200: prefill takes 1.1 times as long at 1.25 tokens per expert, or more, on every shape.

    That was decode.py's GEMV; the one for sm_90 is faster, but more tokens were not timed with it.
    """
    decode = "decode_w4a16_hopper" if gpu.capability == (9, 0) and speed_class(gpu) == DATA_CENTER else "decode_w4a16"
    kernels = [plan_layer(gpu, shape, count).kernel for count in (1, tokens, tokens + 1)]
    assert kernels == [decode, decode, "prefill_w4a16"]


def test_every_record_says_where_it_is_from():
    for record in RECORDS.values():
        assert record.source.startswith(("FreeToken#723", "by reasoning: "))
        assert record.decode_source.startswith(("ours, H200", "by reasoning: "))


@pytest.mark.parametrize("speed", CLASSES, ids=lambda speed: speed.name)
def test_a_class_has_a_record_where_a_capability_has_none(speed):
    """A name never fails a plan, whatever card carries it."""
    assert RECORDS[speed, None]


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("NVIDIA GeForce RTX 3090", (GEFORCE_CLASS, None)),
        ("NVIDIA H20", (H20_CLASS, None)),
        ("NVIDIA GB10", (RTX_PRO, (12, 1))),
        ("NVIDIA H100", (DATA_CENTER, None)),
    ],
)
def test_a_record_is_looked_up_by_class_and_capability_then_by_class(name, record):
    assert tuning_of(Gpu(name, (12, 1))) == RECORDS[record]
