"""What dispatch chooses, and what it refuses."""

import pytest
import torch

from nvfp4_suite.contract import gpus
from nvfp4_suite.contract.gpus import ARCHITECTURES, CATALOG, PORTABLE, Gpu
from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape
from nvfp4_suite.kernels import experts
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.tiles import Tile, shared_memory

H200 = Gpu("NVIDIA H200", (9, 0))
QWEN = CHECKPOINTS["Qwen3.6-35B-A3B"]  # 256 experts, top 8: 32 tokens are one per expert


def _block_m(gpu: Gpu, shape: LayerShape, tokens: int) -> int:
    return plan_layer(gpu, shape, tokens, kernel="prefill").launch("gate_up").constexpr("BLOCK_M")


@pytest.mark.parametrize("gpu", [*CATALOG, PORTABLE, Gpu("from the future", (13, 0))], ids=lambda gpu: gpu.name)
def test_scales_are_fp8_pointers_only_where_e4m3_is_native(gpu):
    for stage in ("gate_up", "down"):
        kind = dict(plan_layer(gpu, QWEN, 64).launch(stage).arguments)["scale"]
        assert kind == ("*fp8e4nv" if gpu.capability and (8, 9) <= gpu.capability < (13, 0) else "*u8")


def test_an_hip_gpu_gets_the_portable_plan():
    plan = plan_layer(Gpu("MI300X", None, "hip", "gfx942"), QWEN, 64)
    assert plan.launches == plan_layer(PORTABLE, QWEN, 64).launches


def test_shared_memory_of_the_large_tile():
    """FreeToken#723: "37,120 bytes on sm_80/86/89/120, 53,504 bytes on sm_90"; for sm_100 it has 256 more than ours."""
    wanted = {(8, 0): 37_120, (8, 6): 37_120, (8, 9): 37_120, (12, 0): 37_120, (9, 0): 53_504, (10, 0): 53_264}
    assert {cc: shared_memory(Tile(128), ARCHITECTURES[cc]) for cc in wanted} == wanted


@pytest.mark.parametrize("gpu", [PORTABLE, Gpu("from the future", (13, 0))], ids=lambda gpu: gpu.name)
def test_an_unknown_architecture_gets_no_block_of_128(gpu):
    assert _block_m(gpu, QWEN, 32768) == 64


@pytest.mark.parametrize("card", [H200, Gpu("NVIDIA B200", (10, 0))], ids=lambda gpu: gpu.name)
@pytest.mark.parametrize(
    ("tile", "large"),
    [(Tile(16), True), (Tile(16, 32), False), (Tile(16, num_warps=2), False), (Tile(16, num_warps=1), False)],
    ids=["enough", "few rows", "2 warps", "1 warp"],
)
def test_a_tile_with_too_few_rows_or_warps_expects_mma_sync(card, tile, large):
    """And has its shared memory: activations are not kept a stage longer, as they are where a dot reads them there."""
    facts = ARCHITECTURES[card.capability]
    instruction = plan_layer(card, QWEN, 64, override=tile).launch("gate_up").instruction
    assert instruction == (facts.matrix_instruction if large else "mma.sync")
    assert (shared_memory(tile, facts) == shared_memory(tile, ARCHITECTURES[8, 0])) == (not large)


def test_a_ragged_k_takes_smaller_steps():
    plan = plan_layer(H200, LayerShape(4, 2, 64, 48), 64)
    assert [plan.launch(stage).constexpr("BLOCK_KB") for stage in ("gate_up", "down")] == [32, 16]
    assert [plan.launch(stage).constexpr("K_UNIT") for stage in ("gate_up", "down")] == [32, 16]


@pytest.mark.fault("NVIDIA/TransformerEngine#3062")
def test_an_override_over_the_limit_is_refused_and_one_under_it_is_not():
    tile = Tile(256, 128, 128, num_stages=3)
    with pytest.raises(ValueError, match=r"override needs .* bytes of shared memory, but NVIDIA L40S has 101,376"):
        plan_layer(Gpu("NVIDIA L40S", (8, 9)), QWEN, 64, override=tile)
    assert _block_m(H200, QWEN, 64) == 16
    assert plan_layer(H200, QWEN, 64, override=Tile(256)).launch("down").constexpr("BLOCK_M") == 256


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "fp32"}, "dtype is 'fp32', but should be one of bf16, fp16"),
        ({"activation": "relu"}, "activation is 'relu', but should be one of silu, gelu, gelu_tanh, swigluoai"),
        ({"kernel": "marlin"}, "kernel is 'marlin', but should be one of auto, prefill, prefill_w4a16"),
        ({"triton": "2.1.0"}, "triton is '2.1.0', but should be one of 3.6.0"),
        ({"override": Tile(24)}, "override's block_m is 24, but should be a power of two of at least 16"),
        ({"override": Tile(16, block_kb=8)}, "override's block_kb is 8, but should be a power of two of at least 16"),
        ({"override": Tile(16, num_stages=0)}, "override's num_stages is 0, but should be a number of at least 1"),
        ({"override": Tile(16, num_warps=64)}, "override's num_warps is 64, but should be at most 32"),
    ],
)
def test_what_is_wrong_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        plan_layer(H200, QWEN, 64, **options)


def test_a_negative_number_of_tokens_is_refused():
    with pytest.raises(ValueError, match="tokens is -1, but should be at least 0"):
        plan_layer(H200, QWEN, -1)


@pytest.mark.fault("sgl-project/sglang#38773")
def test_no_tokens_no_launches():
    assert plan_layer(H200, QWEN, 0).launches == ()


@pytest.mark.parametrize(
    ("kernel", "larger"),
    [("prefill", LayerShape(64, 4, 4096, 1536)), ("prefill_w4a16_hopper", LayerShape(64, 4, 5120, 2048))],
)
def test_sizes_are_never_constants(kernel, larger):
    """One binary serves every shape: H, I, N, K and T are run-time arguments. For sm_90, every K with one rest."""
    shapes = [LayerShape(64, 4, 2048, 512), larger]
    first, second = (plan_layer(H200, shape, 512, weight_on_input=True, kernel=kernel).launches for shape in shapes)
    assert first == second


def test_the_weight_is_applied_once():
    behind, before = (plan_layer(H200, QWEN, 64, weight_on_input=flag) for flag in (False, True))
    assert behind.launch("weigh_input") is None and behind.launch("down").constexpr("WEIGHTED")
    assert before.launch("weigh_input") is not None and not before.launch("down").constexpr("WEIGHTED")


def test_fusion_is_off_in_every_launch():
    """Triton's default changes with its releases; a fused multiply-add rounds once where two operations round twice."""
    assert not any(launch.fp_fusion for launch in plan_layer(H200, QWEN, 64, weight_on_input=True).launches)


@pytest.mark.parametrize(
    ("gpu", "message"),
    [
        (Gpu("NVIDIA X1", (13, 0)), r"NVIDIA X1 has an unknown architecture \(13, 0\): it gets the portable plan"),
        (Gpu("NVIDIA X2", (9, 0)), "'NVIDIA X2' is no known name of a GPU: it is tuned as RTX PRO, rho 4"),
    ],
    ids=["architecture", "name"],
)
def test_what_is_unknown_of_a_gpu_is_announced_once(gpu, message, monkeypatch):
    monkeypatch.setattr(gpus, "current", lambda index: gpu)
    with pytest.warns(UserWarning, match=message):
        assert experts.gpu_of(torch.device("cuda", 0)) == gpu
    assert experts.gpu_of(torch.device("cuda", 0)) == gpu  # a second warning would be an error


@pytest.mark.parametrize("gpu", CATALOG, ids=lambda gpu: gpu.name)
def test_a_known_gpu_is_not_announced(gpu, monkeypatch):
    monkeypatch.setattr(gpus, "current", lambda index: gpu)
    assert experts.gpu_of(torch.device("cuda", 0)) == gpu


@pytest.mark.parametrize(
    ("gpu", "tokens", "options", "reason"),
    [
        (H200, 1700, {}, "53.1 tokens per expert, data center sm_90: block 64"),
        (Gpu("NVIDIA GeForce RTX 3090", (8, 6)), 1696, {}, "53 tokens per expert, GeForce sm_86: block 32"),
        (Gpu("X2", (9, 0)), 100, {}, '3.12 tokens per expert, RTX PRO sm_90 ("X2" is no known name): block 16'),
        (
            Gpu("X1", (13, 0)),
            100,
            {},
            "3.12 tokens per expert, X1 (unknown architecture, portable plan): block 16",
        ),
        (PORTABLE, 100, {}, "3.12 tokens per expert, portable: block 16"),
        (H200, 100, {"override": Tile(128)}, "override, data center sm_90: block 128"),
        (
            H200,
            40,
            {},
            "1.25 tokens per expert, data center sm_90: a GEMV for each route, on tensor cores in gate_up",
        ),
        (H200, 40, {"kernel": "prefill"}, "1.25 tokens per expert, data center sm_90: block 16"),
        (H200, 40, {"kernel": "decode"}, "as asked, NVIDIA H200: a GEMV for each route"),
    ],
)
def test_the_reason_says_what_decided(gpu, tokens, options, reason):
    assert plan_layer(gpu, QWEN, tokens, **options).reason == reason
