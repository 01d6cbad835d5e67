"""What dispatch makes of W4A4, and what it refuses."""

import pytest

from nvfp4_suite.contract.gpus import CATALOG, PORTABLE, Gpu, architecture
from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape
from nvfp4_suite.kernels.plan import LayerPlan, plan_layer
from nvfp4_suite.kernels.tuning import Tile
from nvfp4_suite.kernels.w4a4 import DEFAULT, FORMS

H200 = Gpu("NVIDIA H200", (9, 0))
QWEN = CHECKPOINTS["Qwen3.6-35B-A3B"]  # 256 experts, top 8: 32 tokens are one per expert


def planned(gpu: Gpu = H200, shape: LayerShape = QWEN, tokens: int = 64, kernel: str = "w4a4", **options) -> LayerPlan:
    return plan_layer(gpu, shape, tokens, kernel=kernel, input_scales=True, **options)


@pytest.mark.parametrize("kernel", ["w4a4", *FORMS])
def test_it_needs_input_scales(kernel):
    with pytest.raises(ValueError, match=f"input_scales is False, but should be True for {kernel}: it quantizes"):
        plan_layer(H200, QWEN, 64, kernel=kernel)


def test_it_has_no_tile_to_override():
    with pytest.raises(ValueError, match=r"override is Tile.*, but should be None for w4a4"):
        planned(override=Tile(16))


def test_the_name_that_a_plan_has():
    assert planned().kernel == planned(tokens=0).kernel == DEFAULT
    assert planned(tokens=0).launches == ()
    assert {planned(kernel=name).kernel for name in FORMS} == set(FORMS)


@pytest.mark.parametrize("kernel", ["auto", "prefill"])
def test_it_runs_only_where_it_is_asked_for(kernel):
    assert planned(kernel=kernel).launch("quantize") is None


@pytest.mark.parametrize(("tokens", "block_m"), [(1, 16), (383, 16), (384, 32), (767, 32), (768, 64), (32768, 64)])
def test_block_m_follows_tokens_per_expert(tokens, block_m):
    plan = planned(tokens=tokens)
    stages = ("list_blocks", "gate_up", "down")
    assert {plan.launch(stage).constexpr("BLOCK_M") for stage in stages} == {block_m}
    assert plan.reason.endswith(f"NVIDIA H200: block {block_m}")


def test_a_ragged_k_takes_smaller_steps():
    plan = planned(shape=LayerShape(4, 2, 64, 48))
    assert [plan.launch(stage).constexpr("BLOCK_KB") for stage in ("gate_up", "down")] == [32, 16]
    assert [plan.launch(stage).constexpr("K_UNIT") for stage in ("gate_up", "down")] == [32, 16]


@pytest.mark.parametrize("gpu", [*CATALOG, PORTABLE], ids=lambda gpu: gpu.name)
def test_scales_are_fp8_pointers_only_where_e4m3_is_native(gpu):
    for stage in ("gate_up", "down"):
        kinds = dict(planned(gpu).launch(stage).arguments)
        native = "*fp8e4nv" if architecture(gpu).native_e4m3 else "*u8"
        assert kinds["scale"] == kinds["x_scale"] == native


def test_only_what_meets_hidden_states_or_the_output_knows_their_dtype():
    both = [planned(dtype=dtype) for dtype in ("bf16", "fp16")]
    same = [launch for launch in both[0].launches if launch in both[1].launches]
    assert {launch.stage for launch in both[0].launches} - {launch.stage for launch in same} == {
        "quantize",
        "down",
        "sum_routes",
    }


def test_the_weight_is_applied_once():
    behind, before = (planned(weight_on_input=flag) for flag in (False, True))
    assert behind.launch("weigh_input") is None and behind.launch("down").constexpr("WEIGHTED")
    assert before.launch("weigh_input") is not None and not before.launch("down").constexpr("WEIGHTED")


def test_atomics_need_no_sum():
    plan = planned(kernel="prefill_w4a4_atomic")
    assert plan.launch("sum_routes") is None and plan.launch("down").constexpr("ATOMIC")
    assert planned().launch("sum_routes") is not None and not planned().launch("down").constexpr("ATOMIC")


def test_sizes_are_never_constants_and_fusion_is_off():
    shapes = [LayerShape(64, 4, 2048, 512), LayerShape(64, 4, 4096, 1536)]
    first, second = (planned(shape=shape, tokens=512, weight_on_input=True).launches for shape in shapes)
    assert first == second and not any(launch.fp_fusion for launch in first)
