"""Faults that were made in kernels, by others or as they could be: the gates are red, and only where they should be."""

from dataclasses import replace

import pytest

from nvfp4_suite.ci import gates
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.plan import plan_layer

from .trees import outcomes, passes, planted, refused

SHAPE = LayerShape(256, 8, 2048, 512)
SCALES = "factors = tl.load(scale_tile, mask=in_scales, other=0.0)"
SPREAD = "factors = scales_of_words(factors, scale.dtype.element_ty)"


def gate_up(capability, tokens=1, **options):
    return plan_layer(Gpu("", capability), SHAPE, tokens, kernel="prefill", **options).launch("gate_up")


@pytest.mark.parametrize("capability", [(8, 9), (12, 0), (8, 0), (8, 6)], ids=gates.arch_name)
def test_an_integer_for_what_a_masked_load_of_fp8_leaves_out(capability, tmp_path):
    """FreeToken#578: "cannot cast int32[...] to fp8e4nv" for sm_89 and sm_120, and nothing for sm_80 and sm_86."""
    tree = planted(tmp_path / "tree", "gemm.py", SCALES, SCALES.replace("0.0", "0"))
    (outcome,) = outcomes(tree, gate_up(capability), capability)
    if capability in ((8, 9), (12, 0)):
        refused(outcome, r"does not compile, but should: cannot cast int32\[.*\] to .*fp8e4nv")
    else:
        passes(outcome)


@pytest.mark.fault("sgl-project/sglang#4727")
@pytest.mark.parametrize(
    ("file", "right", "kernel", "stage"),
    [
        ("gemm.py", "expert = tl.load(block_expert + block).to(tl.int64)", "prefill", "gate_up"),
        ("blocks.py", "(route // rows_per_input).to(tl.int64)", "prefill", "gate_up"),
        ("blocks.py", "out + route.to(tl.int64) * N", "prefill", "gate_up"),
        ("gemv.py", "expert = tl.load(topk_ids + route).to(tl.int64)", "decode", "gate_up"),
        ("pointwise.py", "    token = tl.program_id(0).to(tl.int64)", "prefill", "sum_routes"),
    ],
)
def test_an_offset_of_32_bits(file, right, kernel, stage, tmp_path):
    tree = planted(tmp_path / "tree", file, right, right.replace(".to(tl.int64)", ".to(tl.int32)"))
    launch = plan_layer(Gpu("", (9, 0)), SHAPE, 1, kernel=kernel).launch(stage)
    (outcome,) = outcomes(tree, launch, (9, 0))
    refused(
        outcome, "32-bit products? of run-time values are in addresses, but should be at most 0: offsets are 64-bit"
    )


def test_scale_words_that_are_loaded_byte_by_byte(tmp_path):
    """FreeToken, "pipeline the nvfp4 prefill scale loads": cp.async copies no less than 4 bytes."""
    words = plan_layer(Gpu("NVIDIA GeForce RTX 4090", (8, 9)), SHAPE, 32768, kernel="prefill").launch("gate_up")
    assert words.constexpr("SCALE_WORDS")
    tree = planted(
        tmp_path / "tree",
        "gemm.py",
        f"        {SCALES}\n        if SCALE_WORDS:\n            {SPREAD}\n",
        "        of_row = scale + weight_row[:, None] * (K // 16) + start // 8\n"
        "        factors = tl.load(of_row + tl.arange(0, BLOCK_KB // 8)[None, :], mask=inside[:, None], other=0.0)\n",
    )
    (outcome,) = outcomes(tree, words, (8, 9))
    refused(outcome, "the loop waits for ld b8.*, but should load scale words by cp.async$")


@pytest.mark.fault("triton-lang/triton#10821")
def test_a_second_dot_into_the_same_sum(tmp_path):
    """It compiles to the instruction that was planned: only that it adds to another dot's result tells."""
    right = 'acc = tl.dot(dequantize(codes, factors, tokens.dtype), tokens, acc, input_precision="ieee")'
    tree = planted(tmp_path / "tree", "gemm.py", right, f"{right}\n        {right}")
    (outcome,) = outcomes(tree, gate_up((10, 0), tokens=4096), (10, 0))
    refused(outcome, "1 dots add to another's sum on tcgen05, but should not")


def test_a_lost_fp4_instruction(tmp_path):
    """triton-lang/triton#7549: a scaled dot of 64 rows becomes a 16-bit instruction on sm_100, of 128 FP4."""
    tree = planted(tmp_path / "tree", "linear.py", '@triton.jit(do_not_specialize=["M", "N", "splits"])', SCALED_DOT)
    for rows in (64, 128):
        (outcome,) = outcomes(tree, scaled_dot(rows), (10, 0))
        if rows == 64:
            refused(outcome, r"instruction is tcgen05 \S*kind::f16, but should be tcgen05 kind::mxf4nvf4")
        else:
            assert all("kind::mxf4nvf4" in name for name in outcome.facts.instructions)


SCALED_DOT = """@triton.jit(do_not_specialize=["steps"])
def scaled_dot(x, y, scales, out, steps, ROWS: tl.constexpr):
    row, byte, group = tl.arange(0, ROWS)[:, None], tl.arange(0, 64)[None, :], tl.arange(0, 8)[None, :]
    acc = tl.zeros((ROWS, ROWS), tl.float32)
    for step in range(0, steps):
        left, right = tl.load(x + step * 64 + row * 64 + byte), tl.load(y + step * 64 + row * 64 + byte)
        factors = tl.load(scales + step * 8 + row * 8 + group)
        acc = tl.dot_scaled(left, factors, "e2m1", right.T, factors, "e2m1", acc)
    tl.store(out + row * ROWS + tl.arange(0, ROWS)[None, :], acc)


@triton.jit(do_not_specialize=["M", "N", "splits"])"""


def scaled_dot(rows: int):
    arguments = (("x", "*u8"), ("y", "*u8"), ("scales", "*fp8e4nv"), ("out", "*fp32"), ("steps", "i32"))
    launch = replace(gate_up((10, 0)), kernel="linear.scaled_dot", arguments=arguments, constexprs=(("ROWS", rows),))
    return replace(launch, divisible=("x", "y", "scales", "out"), instruction="tcgen05 kind::mxf4nvf4")


@pytest.mark.fault("triton-lang/triton#11753")
def test_e4m3_by_way_of_fp16(tmp_path):
    """Triton 3.8.0 rounds twice on sm_89, and once on sm_90. No rule lets a kernel of ours convert to e4m3."""
    right = "result = activate(gate, up, alpha, limit, ACTIVATION)\n"
    wrong = f"{right}    result = result.to(tl.float8e4nv).to(tl.float32)\n"
    tree = planted(tmp_path / "tree", "pointwise.py", right, wrong)
    launch = plan_layer(Gpu("", (8, 9)), SHAPE, 1).launch("activation")
    twice, once = outcomes(tree, launch, (8, 9), (9, 0))
    refused(twice, "e4m3 is converted from f16x2, but should be from nothing$")
    refused(once, "e4m3 is converted from f32, but should be from nothing$")
