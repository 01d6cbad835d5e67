"""What a decode plan is made of."""

import pytest

from nvfp4_suite.contract.gpus import CATALOG, PORTABLE, Gpu
from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape
from nvfp4_suite.kernels.decode import NARROW, WIDE, gemv_constants
from nvfp4_suite.kernels.plan import LayerPlan, plan_layer
from nvfp4_suite.kernels.tiles import Tile

H200 = Gpu("NVIDIA H200", (9, 0))
QWEN = CHECKPOINTS["Qwen3.6-35B-A3B"]


def _plan(gpu: Gpu = H200, shape: LayerShape = QWEN, tokens: int = 1, **options) -> LayerPlan:
    return plan_layer(gpu, shape, tokens, **{"kernel": "decode"} | options)


@pytest.mark.parametrize(
    ("k", "cut", "unit"),
    [
        (2048, WIDE, 32),
        (5120, WIDE, 32),
        (2560, WIDE, 32),  # 320 of 384 words
        (1664, WIDE, 32),  # 208 of 256
        (1632, NARROW, 32),  # 204 of 256: under four fifths
        (512, NARROW, 32),
        (704, NARROW, 32),
        (1040, NARROW, 16),
        (2064, NARROW, 16),
        (16, NARROW, 16),
    ],
)
def test_a_gemv_is_cut_by_its_k(k, cut, unit):
    assert gemv_constants(k) == {"BLOCK_N": cut[0], "WORDS": cut[1], "K_UNIT": unit}


def test_a_step_is_sixteen_words_a_thread():
    for block_n, words in (WIDE, NARROW):
        assert block_n * words == 16 * 32 * _plan().launch("gate_up").num_warps


def test_routes_are_not_sorted():
    stages = ["gate_up", "activation", "down", "sum_routes"]
    assert [launch.stage for launch in _plan().launches] == stages
    assert [launch.stage for launch in _plan(weight_on_input=True).launches] == ["weigh_input", *stages]


def test_the_weight_is_applied_once():
    for stage, weighted in (("gate_up", (False, False)), ("down", (True, False))):
        found = (_plan(weight_on_input=flag).launch(stage).constexpr("WEIGHTED") for flag in (False, True))
        assert tuple(found) == weighted


@pytest.mark.parametrize("gpu", [*CATALOG, PORTABLE, Gpu("from the future", (13, 0))], ids=lambda gpu: gpu.name)
def test_scales_are_fp8_pointers_only_where_e4m3_is_native(gpu):
    for stage in ("gate_up", "down"):
        kind = dict(_plan(gpu).launch(stage).arguments)["scale"]
        assert kind == ("*fp8e4nv" if gpu.capability and (8, 9) <= gpu.capability < (13, 0) else "*u8")


def test_no_launch_fuses_and_none_has_a_matrix_instruction():
    assert not any(launch.fp_fusion or launch.instruction for launch in _plan(weight_on_input=True).launches)


def test_both_its_names_choose_it():
    assert _plan().kernel == _plan(kernel="decode_w4a16").kernel == "decode_w4a16"
    assert _plan().launches == _plan(kernel="decode_w4a16").launches


@pytest.mark.fault("sgl-project/sglang#38773")
def test_no_tokens_no_launches():
    assert (_plan(tokens=0).kernel, _plan(tokens=0).launches) == ("decode_w4a16", ())


def test_a_tile_of_prefill_is_refused():
    with pytest.raises(ValueError, match=r"override is Tile\(.*\), but should be None for decode"):
        _plan(override=Tile(16))


def test_the_reason_says_what_decided():
    assert _plan().reason == "as asked, NVIDIA H200: a GEMV for each route"
