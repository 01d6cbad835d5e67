"""Where the decode kernel for sm_90 is planned, in which of a layer's GEMVs, and why not elsewhere."""

import pytest

from nvfp4_suite.contract.gpu_names import DATA_CENTER, speed_class
from nvfp4_suite.contract.gpus import CATALOG, Gpu
from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape
from nvfp4_suite.kernels import decode, hopper, hopper_gemv
from nvfp4_suite.kernels.page import page
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.releases import NO_ASSEMBLER, TRITONS
from nvfp4_suite.kernels.tiles import Tile
from nvfp4_suite.kernels.tuning import tuning_of

H200 = Gpu("NVIDIA H200", (9, 0))
QWEN, GEMMA = CHECKPOINTS["Qwen3.6-35B-A3B"], CHECKPOINTS["Gemma-4-26B-A4B"]
BOTH = ("gate_up", "down")
NONE = "no GEMV has a K of whole 512s from 1024 on, and an N of whole 32s"

# Of published layers, the GEMVs over K of 1024 and more; Gemma-4's 2816 is no multiple of 512.
TAKEN = {
    "Qwen3.6-35B-A3B": ("gate_up",),
    "Qwen3.5-122B-A10B": BOTH,
    "Qwen3.8-Flash": ("gate_up",),
    "Gemma-4-26B-A4B": (),
    "MiniMax-M2.5": BOTH,
    "GLM-4.7": BOTH,
    "GLM-5.2": BOTH,
    "GLM-5.3-Flash": BOTH,
    "MiniMax-M3": BOTH,
}


def planned(shape: LayerShape, gpu: Gpu = H200, tokens: int = 1, **options):
    return plan_layer(gpu, shape, tokens, **{"kernel": hopper_gemv.NAME} | options)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_each_gemv_is_planned_by_its_own_size(name):
    plan, plain = planned(CHECKPOINTS[name]), planned(CHECKPOINTS[name], kernel=decode.NAME)
    assert plan.kernel == hopper_gemv.NAME
    for found, other in zip(plan.launches, plain.launches, strict=True):
        if found.stage in TAKEN[name]:
            assert (found.kernel, found.instruction) == (hopper_gemv.GEMV, "mma.sync")
            assert (found.arguments, found.divisible) == (other.arguments, other.divisible)
            assert found.constexpr("WEIGHTED") == other.constexpr("WEIGHTED")
        else:
            assert found == other


@pytest.mark.parametrize(
    ("k", "n", "takes"),
    [
        (1024, 32, True),
        (1536, 96, True),
        (512, 32, False),
        (1024 + 256, 32, False),
        (1024, 48, False),
    ],
)
def test_a_gemv_has_whole_steps_and_blocks(k, n, takes):
    assert hopper_gemv.takes(k, n) == takes


def test_a_step_is_that_of_its_warps():
    from nvfp4_suite.kernels.device.hopper_gemv import STEP

    assert hopper_gemv.NUM_WARPS * STEP.value == hopper_gemv.K_UNIT


@pytest.mark.parametrize(
    ("gpu", "shape", "triton", "why"),
    [
        (Gpu("NVIDIA B200", (10, 0)), QWEN, "3.8.0", "it needs sm_90"),
        (H200, QWEN, "3.7.1", "it needs Triton 3.8.0 or 3.9.0"),
        (H200, GEMMA, "3.8.0", NONE),
        (H200, LayerShape(8, 2, 48, 1024), "3.8.0", NONE),  # down has 48 rows
    ],
)
def test_where_it_cannot_be_decodes_launches_run_and_the_reason_says_why(gpu, shape, triton, why):
    plan = planned(shape, gpu, triton=triton)
    assert plan.kernel == hopper_gemv.NAME and plan.reason.endswith(f", not for sm_90 ({why})")
    assert plan.launches == planned(shape, gpu, triton=triton, kernel=decode.NAME).launches


@pytest.mark.parametrize("gpu", CATALOG, ids=lambda gpu: gpu.name)
def test_auto_takes_it_where_it_took_decode_on_data_center_cards(gpu):
    for triton in set(TRITONS) - set(NO_ASSEMBLER.get(gpu.capability, ())):
        able = gpu.capability == (9, 0) and triton in hopper.TRITONS and speed_class(gpu) == DATA_CENTER
        chosen = planned(QWEN, gpu, triton=triton, kernel="auto")
        assert chosen.kernel == (hopper_gemv.NAME if able else decode.NAME)
        assert chosen.launches == planned(QWEN, gpu, triton=triton, kernel=chosen.kernel).launches
        assert planned(GEMMA, gpu, triton=triton, kernel="auto").kernel == decode.NAME


def test_the_reason_says_which_gemvs():
    assert planned(QWEN).reason == "as asked, NVIDIA H200: a GEMV for each route, on tensor cores in gate_up"
    assert planned(CHECKPOINTS["GLM-4.7"]).reason.endswith(", on tensor cores in gate_up and down")


def test_no_tokens_no_launches():
    assert planned(QWEN, tokens=0).launches == ()


def test_a_tile_of_prefill_is_refused():
    with pytest.raises(ValueError, match=r"override is Tile\(.*\), but should be None for decode_w4a16_hopper"):
        planned(QWEN, override=Tile(16))


def test_a_page_shows_it():
    lines = page(planned(QWEN, kernel="auto"), H200, "Qwen3.6-35B-A3B").splitlines()
    assert "kernel  decode_w4a16_hopper" in lines and f"source  {tuning_of(H200).decode_source}" in lines
    row = next(line for line in lines if line.startswith("gate_up"))
    assert "w4a16_hopper_gemv" in row and "BLOCK_N 32 STAGES 2 K_UNIT 512" in row and row.endswith("mma.sync")
