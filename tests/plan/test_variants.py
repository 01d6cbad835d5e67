"""What dispatch makes of the variants of the prefill kernel, and where one of them cannot have what it is named for."""

from dataclasses import replace
from itertools import product

import pytest

from nvfp4_suite.contract.gpus import CATALOG, PORTABLE, Gpu, architecture, is_known
from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape
from nvfp4_suite.kernels.launch import Launch
from nvfp4_suite.kernels.plan import KERNELS, plan_layer
from nvfp4_suite.kernels.tiles import Tile, shared_memory
from nvfp4_suite.kernels.variants import DEFAULT, FORMS, VARIANTS, Variant

H200 = Gpu("NVIDIA H200", (9, 0))
B200 = Gpu("NVIDIA B200", (10, 0))
UNKNOWN = Gpu("from the future", (13, 0))
QWEN = CHECKPOINTS["Qwen3.6-35B-A3B"]
RAGGED = LayerShape(4, 2, 272, 80)
TWO_DOTS = [name for name, variant in VARIANTS.items() if variant.two_dots]
every_variant = pytest.mark.parametrize("kernel", VARIANTS)


def _gemm(kernel: str, gpu: Gpu = H200, shape: LayerShape = QWEN, tokens: int = 64, **options) -> Launch:
    return plan_layer(gpu, shape, tokens, kernel=kernel, **options).launch("gate_up")


@pytest.mark.parametrize(
    ("kernel", "function", "scale", "own"),
    [
        ("prefill_w4a16", "gemm.w4a16_gemm", "*fp8e4nv", {"K_UNIT": 32, "SCALE_WORDS": False}),
        ("prefill_w4a16_words", "gemm.w4a16_gemm", "*fp8e4nv", {"K_UNIT": 64, "SCALE_WORDS": True}),
        ("prefill_w4a16_emulated", "gemm.w4a16_gemm", "*u8", {"K_UNIT": 32, "SCALE_WORDS": False}),
        ("prefill_w4a16_pair", "gemm_two_dots.w4a16_pair_gemm", "*fp8e4nv", {"K_UNIT": 32, "EVEN_K": True}),
        ("prefill_w4a16_table", "gemm_two_dots.w4a16_table_gemm", "*fp8e4nv", {"K_UNIT": 32}),
    ],
)
def test_a_variant_is_what_its_name_says(kernel, function, scale, own):
    launch = _gemm(kernel)
    assert (launch.kernel, dict(launch.arguments)["scale"]) == (function, scale)
    shared = ("BLOCK_M", "BLOCK_N", "BLOCK_KB", "WEIGHTED")
    assert {name: value for name, value in launch.constexprs if name not in shared} == own
    assert ("table" in dict(launch.arguments)) == (kernel == "prefill_w4a16_table")


def test_this_file_knows_every_variant():
    assert set(VARIANTS) == {DEFAULT, *(f"prefill_w4a16_{end}" for end in ("words", "emulated", "pair", "table"))}
    assert {variant.form for variant in VARIANTS.values()} == set(FORMS)


@every_variant
def test_a_variant_is_planned_by_its_name(kernel):
    assert kernel in KERNELS
    assert plan_layer(H200, QWEN, 64, kernel=kernel).kernel == plan_layer(H200, QWEN, 0, kernel=kernel).kernel == kernel


@pytest.mark.parametrize("kernel", ["auto", "prefill"])
def test_dispatch_chooses_the_default(kernel):
    """With fewer tokens than those from where on a kernel for sm_90 is faster."""
    assert plan_layer(H200, QWEN, 63, kernel=kernel) == plan_layer(H200, QWEN, 63, kernel=DEFAULT)


@every_variant
def test_only_the_gemms_differ(kernel):
    options = {"override": Tile(32), "weight_on_input": True}
    ours, default = (plan_layer(H200, QWEN, 64, kernel=name, **options).launches for name in (kernel, DEFAULT))
    differ = {a.stage for a, b in zip(ours, default, strict=True) if a != b}
    assert differ == (set() if kernel == DEFAULT else {"gate_up", "down"})


@pytest.mark.parametrize(
    ("shape", "override", "words", "reason"),
    [
        (QWEN, None, [True, True], "2 tokens per expert, data center sm_90: block 16"),
        (
            LayerShape(4, 2, 128, 80),
            None,
            [True, False],
            "32 tokens per expert, data center sm_90: block 64, "
            "single scales in down (K 80 or its step 32 is no multiple of 64)",
        ),
        (
            LayerShape(4, 2, 96, 128),
            None,
            [False, True],
            "32 tokens per expert, data center sm_90: block 64, "
            "single scales in gate_up (K 96 or its step 64 is no multiple of 64)",
        ),
        (
            LayerShape(4, 2, 128, 64),
            Tile(16, block_kb=16),
            [False, False],
            "override, data center sm_90: block 16, "
            "single scales in gate_up (K 128 or its step 32 is no multiple of 64), "
            "single scales in down (K 64 or its step 32 is no multiple of 64)",
        ),
    ],
    ids=["whole words", "down is ragged", "gate_up is ragged", "short steps"],
)
def test_scale_words_fall_back_to_single_scales_and_the_reason_says_so(shape, override, words, reason):
    plan = plan_layer(H200, shape, 64, kernel="prefill_w4a16_words", override=override)
    assert [plan.launch(stage).constexpr("SCALE_WORDS") for stage in ("gate_up", "down")] == words
    assert plan.reason == reason


@pytest.mark.parametrize(
    ("hidden", "block_kb", "even"),
    [(128, 32, True), (128, 64, True), (64, 64, False), (96, 32, False), (272, 32, False)],
)
def test_even_k_only_where_steps_divide_the_row(hidden, block_kb, even):
    shape = LayerShape(4, 2, hidden, 64)
    assert _gemm("prefill_w4a16_pair", shape=shape, override=Tile(32, block_kb=block_kb)).constexpr("EVEN_K") == even


@pytest.mark.fault("triton-lang/triton#10821")
@pytest.mark.parametrize("gpu", [*CATALOG, PORTABLE, UNKNOWN], ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("tokens", [1, 32768])
@pytest.mark.parametrize("kernel", TWO_DOTS)
def test_two_dots_never_reach_tcgen05(kernel, tokens, gpu):
    """triton-lang/triton#10821: two dots into one accumulator give wrong sums there, from 64 rows."""
    launch = _gemm(kernel, gpu, tokens=tokens)
    if not is_known(gpu) or architecture(gpu).matrix_instruction == "tcgen05":
        assert (launch.instruction, launch.constexpr("BLOCK_M")) == ("mma.sync", 32)
    elif tokens == 32768:
        assert (launch.instruction, launch.constexpr("BLOCK_M")) == (architecture(gpu).matrix_instruction, 64)
    else:
        assert (launch.instruction, launch.constexpr("BLOCK_M")) == ("mma.sync", 32)


@pytest.mark.fault("triton-lang/triton#10821")
@pytest.mark.parametrize("kernel", TWO_DOTS)
@pytest.mark.parametrize(
    "gpu", [*(gpu for gpu in CATALOG if gpu.capability[0] in (10, 11)), PORTABLE, UNKNOWN], ids=lambda gpu: gpu.name
)
def test_an_override_that_would_reach_it_is_refused(gpu, kernel):
    message = f"override's block_m is 64, but should be at most 32 for {VARIANTS[kernel].form} on {gpu.name}"
    with pytest.raises(ValueError, match=message):
        _gemm(kernel, gpu, override=Tile(64))
    assert _gemm(kernel, gpu, override=Tile(32)).instruction == "mma.sync"
    assert _gemm(kernel, override=Tile(128)).instruction == "wgmma"


@pytest.mark.parametrize("kernel", TWO_DOTS)
def test_two_dots_take_no_step_of_16_bytes(kernel):
    """Each of the dots would be over 16 of K."""
    with pytest.raises(ValueError, match="override's block_kb is 16, but should be a power of two of at least 32"):
        _gemm(kernel, override=Tile(32, block_kb=16))
    assert _gemm(kernel, shape=RAGGED).constexpr("BLOCK_KB") == 32


@pytest.mark.parametrize("gpu", [*CATALOG, PORTABLE, UNKNOWN], ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("kernel", TWO_DOTS)
def test_two_dots_of_64_rows_on_a_ragged_k_have_fewer_stages_where_more_would_spill(kernel, gpu):
    """With Triton 3.6.0 and 3.9.0 on sm_80, 86 and 89 (compile gates); wgmma, which has digests recorded, has three."""
    for tokens, shape in product((1, 32768), (RAGGED, LayerShape(256, 8, 2048, 512))):
        launch = _gemm(kernel, gpu, shape, tokens)
        many = (launch.instruction, launch.constexpr("BLOCK_M"), shape) == ("mma.sync", 64, RAGGED)
        assert launch.num_stages == (2 if many else 3)


@every_variant
@pytest.mark.parametrize("gpu", [*CATALOG, PORTABLE, UNKNOWN], ids=lambda gpu: gpu.name)
def test_scales_are_bytes_where_emulated_or_not_native(gpu, kernel):
    native = architecture(gpu).native_e4m3 and not VARIANTS[kernel].emulated
    assert dict(_gemm(kernel, gpu).arguments)["scale"] == ("*fp8e4nv" if native else "*u8")


@pytest.mark.fault("NVIDIA/TransformerEngine#3062")
@every_variant
@pytest.mark.parametrize("gpu", [*CATALOG, PORTABLE, UNKNOWN], ids=lambda gpu: gpu.name)
def test_every_plan_fits_into_shared_memory(gpu, kernel):
    for shape in (*CHECKPOINTS.values(), RAGGED):
        for tokens in (1, 32768):
            launch = _gemm(kernel, gpu, shape, tokens)
            sizes = (launch.constexpr(name) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_KB"))
            tile = Tile(*sizes, launch.num_warps, launch.num_stages)
            assert shared_memory(tile, architecture(gpu), VARIANTS[kernel]) <= architecture(gpu).shared_memory


@pytest.mark.parametrize(
    ("variant", "capability", "tile", "compiled"),
    [
        (Variant(scale_words=True), (8, 6), Tile(64), 29_184),
        (Variant(scale_words=True), (9, 0), Tile(64), 39_424),
        (Variant(scale_words=True), (9, 0), Tile(128), 64_000),
        (Variant(scale_words=True), (9, 0), Tile(64, num_warps=8), 41_472),
        (Variant(scale_words=True), (10, 0), Tile(64), 29_200),
        (Variant("pair"), (8, 6), Tile(32), 18_432),
        (Variant("pair"), (8, 6), Tile(64, block_kb=64), 57_344),
        (Variant("pair"), (9, 0), Tile(64), 32_768),
        (Variant("pair"), (10, 0), Tile(32), 18_432),
        (Variant("table"), (8, 6), Tile(32), 30_720),
        (Variant("table"), (9, 0), Tile(64), 34_816),
        (Variant("table"), (9, 0), Tile(64, num_warps=8), 38_912),
        (Variant("table"), (9, 0), Tile(64, block_kb=64), 69_632),
    ],
    ids=lambda value: repr(value) if isinstance(value, Variant) else None,
)
def test_shared_memory_is_what_triton_3_8_0_takes(variant, capability, tile, compiled):
    assert shared_memory(tile, architecture(Gpu("", capability)), variant) == compiled


def test_an_override_that_fits_one_form_alone():
    """The byte form takes 50,176 bytes, the table form 122,880."""
    tile = Tile(64, 128, 64, num_stages=3)
    card = replace(H200, name="RTX", capability=(8, 9))
    assert _gemm(DEFAULT, card, override=tile)
    with pytest.raises(ValueError, match=r"override needs .* bytes of shared memory, but RTX has 101,376 a block"):
        _gemm("prefill_w4a16_table", card, override=tile)
