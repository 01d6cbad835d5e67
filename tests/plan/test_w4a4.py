"""What dispatch makes of W4A4, and what it refuses."""

from itertools import product

import pytest

from nvfp4_suite.contract.gpus import CATALOG, PORTABLE, Gpu, architecture
from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape
from nvfp4_suite.kernels.plan import LayerPlan, plan_layer
from nvfp4_suite.kernels.releases import NO_ASSEMBLER, TRITONS
from nvfp4_suite.kernels.tiles import Tile
from nvfp4_suite.kernels.variants import DEFAULT as W4A16
from nvfp4_suite.kernels.w4a4 import (
    DEFAULT,
    FORMS,
    NATIVE,
    NATIVE_TRITONS,
    SPECIALIZED,
    SPECIALIZED_DOWN,
    SPECIALIZED_GATE_UP,
)

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


FP4 = [gpu for gpu in CATALOG if architecture(gpu).native_fp4]
OTHERS = [*(gpu for gpu in CATALOG if gpu not in FP4), PORTABLE, Gpu("from the future", (13, 0))]


@pytest.mark.parametrize("gpu", FP4, ids=lambda gpu: gpu.name)
def test_dispatch_takes_it_on_fp4_hardware_from_4_tokens_per_expert(gpu):
    """FreeToken's W4A4 pull request: "prefill runs W4A4 from 4 tokens per expert and main's W4A16 below"."""
    below, at, above = (planned(gpu, tokens=tokens, kernel="auto") for tokens in (127, 128, 32768))
    assert (below.kernel, at.kernel, above.kernel) == (W4A16, NATIVE, NATIVE)
    assert at == planned(gpu, tokens=128)
    for tokens in (0, 1, 40, 127):
        assert planned(gpu, tokens=tokens, kernel="auto") == plan_layer(gpu, QWEN, tokens)


@pytest.mark.parametrize("gpu", FP4, ids=lambda gpu: gpu.name)
def test_dispatch_leaves_it_where_nothing_asks_for_it(gpu):
    """No input scales; W4A16 by name; a tile, which it has none for."""
    for options in ({}, {"kernel": "prefill", "input_scales": True}, {"override": Tile(16), "input_scales": True}):
        assert plan_layer(gpu, QWEN, 4096, **options).kernel == W4A16


@pytest.mark.parametrize("gpu", OTHERS, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("triton", TRITONS)
def test_dispatch_leaves_it_on_other_hardware(gpu, triton):
    for tokens in (1, 128, 4096):
        assert planned(gpu, tokens=tokens, kernel="auto", triton=triton) == plan_layer(gpu, QWEN, tokens, triton=triton)


@pytest.mark.parametrize("gpu", FP4, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("triton", TRITONS)
def test_dispatch_takes_it_only_where_the_toolchain_makes_the_native_dot(gpu, triton):
    """triton-lang/triton#7549."""
    if triton not in NO_ASSEMBLER.get(gpu.capability, ()):
        found = planned(gpu, tokens=4096, kernel="auto", triton=triton).kernel
        assert found == (NATIVE if native(gpu, triton) else W4A16)


@pytest.mark.parametrize(("tokens", "block_m"), [(1, 16), (383, 16), (384, 32), (767, 32), (768, 64), (32768, 64)])
def test_block_m_follows_tokens_per_expert(tokens, block_m):
    plan = planned(tokens=tokens)
    stages = ("list_blocks", "gate_up", "down")
    assert {plan.launch(stage).constexpr("BLOCK_M") for stage in stages} == {block_m}
    assert plan.reason.endswith(f"data center sm_90: block {block_m}")


def test_a_ragged_k_takes_smaller_steps():
    plan = planned(shape=LayerShape(4, 2, 64, 48), tokens=1)
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


@pytest.mark.parametrize(("first", "second"), [(512, 768), (1024, 1536)], ids=["persistent", "plain"])
def test_sizes_are_never_constants_and_fusion_is_off(first, second):
    shapes = [LayerShape(64, 4, 2048, first), LayerShape(64, 4, 4096, second)]
    first, second = (planned(shape=shape, tokens=512, weight_on_input=True).launches for shape in shapes)
    assert first == second and not any(launch.fp_fusion for launch in first)


def native(gpu: Gpu, triton: str) -> bool:
    """Whether the plan has native dots, which both GEMMs have or none."""
    plan = planned(gpu, triton=triton)
    (found,) = {plan.launch(stage).constexpr("NATIVE") for stage in ("gate_up", "down")}
    assert plan.kernel == (NATIVE if found else DEFAULT)
    return found


@pytest.mark.fault("triton-lang/triton#7549")
@pytest.mark.parametrize("gpu", [*CATALOG, PORTABLE, Gpu("from the future", (13, 0))], ids=lambda gpu: gpu.name)
def test_a_native_dot_is_planned_only_where_the_toolchain_makes_one(gpu):
    """triton-lang/triton#7549: elsewhere it stops the compiler, or becomes something else."""
    can = [triton for triton in TRITONS if triton not in NO_ASSEMBLER.get(gpu.capability, ())]
    releases = {triton for triton in can if native(gpu, triton)}
    every, later = set(TRITONS), {"3.8.0", "3.9.0"}
    wanted = {(10, 0): every, (10, 3): every, (11, 0): later | {"3.7.1"}, (12, 0): every, (12, 1): later}
    assert releases == wanted.get(gpu.capability, set())


@pytest.mark.parametrize("gpu", FP4, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("shape", [QWEN, LayerShape(256, 8, 272, 80)])
def test_a_native_dot_has_128_weight_rows_scales_of_e4m3_and_a_kind_that_is_asked_for(gpu, shape):
    """With 64 rows it silently becomes a 16-bit one on tcgen05, and bytes would be powers of two."""
    plan = planned(gpu, shape)
    gate_up, down = plan.launch("gate_up"), plan.launch("down")
    assert 2 * gate_up.constexpr("BLOCK_N") == down.constexpr("BLOCK_N") == 128
    for launch in (gate_up, down):
        kinds = dict(launch.arguments)
        assert kinds["scale"] == kinds["x_scale"] == "*fp8e4nv"
        assert launch.instruction == f"{architecture(gpu).matrix_instruction} kind::mxf4nvf4"


@pytest.mark.parametrize("gpu", FP4, ids=lambda gpu: gpu.name)
def test_a_large_native_gate_up_has_fewer_stages_where_more_would_spill(gpu):
    """With Triton 3.6.0 on sm_120 (compile gates): 16 bytes a thread."""
    for tokens, triton in product((1, 512, 4096), NATIVE_TRITONS[gpu.capability]):
        plan = planned(gpu, tokens=tokens, triton=triton)
        spills = (gpu.capability, tokens, triton) == ((12, 0), 4096, "3.6.0")
        assert [plan.launch(stage).num_stages for stage in ("gate_up", "down")] == [2 if spills else 3, 3]


def test_a_native_kernel_that_cannot_be_says_so():
    plan = planned(kernel=NATIVE)
    assert plan.kernel == NATIVE and plan.launches == planned().launches
    assert plan.reason == "2 tokens per expert, data center sm_90: block 16, decoded (no FP4 instruction here)"


RTX_5090 = Gpu("NVIDIA GeForce RTX 5090", (12, 0))


def specialized(gpu: Gpu = RTX_5090, shape: LayerShape = QWEN, kernel: str = SPECIALIZED, **options) -> set[str]:
    """Which stages of the plan are warp-specialized."""
    kernels = {"gate_up": SPECIALIZED_GATE_UP, "down": SPECIALIZED_DOWN}
    plan = planned(gpu, shape, kernel=kernel, **options)
    return {stage for stage, name in kernels.items() if plan.launch(stage).kernel == name}


@pytest.mark.parametrize("gpu", [*CATALOG, PORTABLE], ids=lambda gpu: gpu.name)
def test_both_gemms_are_specialized_where_that_compiles_and_nowhere_unasked(gpu):
    able = [triton for triton in TRITONS if triton not in NO_ASSEMBLER.get(gpu.capability, ())]
    releases = {triton for triton in able if specialized(gpu, triton=triton) == {"gate_up", "down"}}
    assert releases == ({"3.8.0", "3.9.0"} if gpu.capability in ((12, 0), (12, 1)) else set())
    for kernel in ("auto", "w4a4", *FORMS):
        assert bool(specialized(gpu, kernel=kernel)) == (kernel == SPECIALIZED and bool(releases))


RAGGED_GATE_UP, RAGGED_DOWN = LayerShape(256, 8, 2048 + 32, 512), LayerShape(256, 8, 2048, 96)


@pytest.mark.parametrize(
    ("gpu", "shape", "triton", "stages", "lacks"),
    [
        (RTX_5090, QWEN, "3.8.0", {"gate_up", "down"}, ""),
        (RTX_5090, QWEN, "3.6.0", set(), ", not specialized (it needs sm_120 or 121 and Triton 3.8.0 or later)"),
        (RTX_5090, QWEN, "3.7.1", set(), ", not specialized (it needs sm_120 or 121 and Triton 3.8.0 or later)"),
        (RTX_5090, RAGGED_DOWN, "3.8.0", {"gate_up"}, ", not specialized in down (K 96 is no multiple of 64)"),
        (RTX_5090, RAGGED_GATE_UP, "3.8.0", {"down"}, ", not specialized in gate_up (K 2080 is no multiple of 64)"),
        (Gpu("NVIDIA B200", (10, 0)), QWEN, "3.8.0", set(), ", not specialized (it needs sm_120 or 121 and Triton 3.8"),
        (H200, QWEN, "3.8.0", set(), ", decoded (no FP4 instruction here)"),
    ],
)
def test_a_specialized_gemm_that_cannot_be_says_why(gpu, shape, triton, stages, lacks):
    plan = planned(gpu, shape, kernel=SPECIALIZED, triton=triton)
    assert plan.kernel == SPECIALIZED and plan.reason.partition("block 16")[2].startswith(lacks)
    assert (lacks == "") == plan.reason.endswith("block 16")
    assert specialized(gpu, shape, triton=triton) == stages
    native = planned(gpu, shape, kernel=NATIVE, triton=triton)
    others = {one.stage for one, other in zip(plan.launches, native.launches, strict=True) if one != other}
    assert others == stages


def test_every_k_has_one_specialized_binary():
    shapes = [LayerShape(256, 8, size, size) for size in (64, 320, 1024, 2880)]
    for stage in ("gate_up", "down"):
        launches = {planned(RTX_5090, shape, 512, SPECIALIZED).launch(stage) for shape in shapes}
        assert len(launches) == 1


@pytest.mark.parametrize("tokens", [1, 512, 4096])
def test_a_specialized_gemm_has_the_tile_of_the_native_one(tokens):
    """So that it is fed the same rows, in the same order of K: a sum has the same products in the same steps."""
    plans = [planned(RTX_5090, tokens=tokens, kernel=kernel) for kernel in (SPECIALIZED, NATIVE)]
    for stage in ("gate_up", "down"):
        sizes = [[plan.launch(stage).constexpr(name) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_KB")] for plan in plans]
        assert sizes[0] == sizes[1]
