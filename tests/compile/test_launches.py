"""Is the list of gates complete? No compiler here: what plans can choose against what `launches` lists."""

from dataclasses import replace
from itertools import product

import pytest

from nvfp4_suite.ci import gates
from nvfp4_suite.ci.gate_known import known_failure
from nvfp4_suite.ci.plans import CARDS
from nvfp4_suite.contract.gpus import ARCHITECTURES, CATALOG, PORTABLE, Gpu
from nvfp4_suite.contract.kernel import ACTIVATIONS, DTYPES
from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape
from nvfp4_suite.kernels import w4a4
from nvfp4_suite.kernels.decode import NARROW, WIDE
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.releases import TRITONS
from nvfp4_suite.kernels.tuning import BLOCK_M_STEPS, block_m_steps
from nvfp4_suite.kernels.variants import DEFAULT, VARIANTS

SMALL = {f"{experts} experts": LayerShape(experts, 1, 2048, 768) for experts in (1, 8, 60)}
SHAPES = CHECKPOINTS | SMALL


def gated(capability: tuple[int, int]) -> list:
    return [launch for listed, launch in gates.launches() if listed == capability]


def test_every_gate_has_its_own_name():
    ids = [gates.launch_id(*gate) for gate in gates.launches()]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("capability", gates.GATED, ids=gates.arch_name)
def test_every_tile_scale_dtype_and_option_is_gated(capability):
    """Of an odd multiple of 16, which no published layer has, each block is gated in one dtype."""
    launches, architecture = gated(capability), ARCHITECTURES[capability]
    gemms = [g for g in launches if g.kernel == "gemm.w4a16_gemm" and not g.constexpr("SCALE_WORDS")]
    own = "*fp8e4nv" if architecture.native_e4m3 else "*u8"
    crossed = _constants(capability, "gemm.w4a16_gemm", "BLOCK_M", "K_UNIT", "WEIGHTED")
    assert {gate for gate in crossed if gate[1] == 32 and gate[3] == own} == {
        (m, 32, weighted, own, f"*{dtype}") for (_, m), weighted, dtype in product(BLOCK_M_STEPS, (False, True), DTYPES)
    }
    ragged = {gate[:3] for gate in crossed if gate[1] == 16 and gate[3] == own}
    assert ragged == {(m, 16, weighted) for (_, m), weighted in product(BLOCK_M_STEPS, (False, True))}
    assert {gate[4] for gate in crossed if gate[1] == 16} == {f"*{dtype}" for dtype in DTYPES}
    assert {gemm.instruction for gemm in gemms} == {architecture.matrix_instruction}
    activations = {(dict(a.arguments)["out"], a.constexpr("ACTIVATION")) for a in launches if a.stage == "activation"}
    assert activations == {(f"*{dtype}", activation) for dtype in DTYPES for activation in ACTIVATIONS}


@pytest.mark.parametrize("gpu", CATALOG, ids=lambda g: g.name)
@pytest.mark.parametrize("kernel", [name for name in VARIANTS if name != DEFAULT])
def test_a_variants_samples_show_each_of_its_blocks_dtypes_and_kinds_of_k(kernel, gpu):
    """Not crossed, but every value that a plan can give one of these is compiled at least once."""
    names = ("BLOCK_M", "K_UNIT", "WEIGHTED", "EVEN_K", "SCALE_WORDS")

    def values(launch):
        own = {(name, value) for name, value in launch.constexprs if name in names}
        return own | {("dtype", dict(launch.arguments)["x"]), ("scale", dict(launch.arguments)["scale"])}

    planned = [
        plan_layer(gpu, LayerShape(256, 8, hidden, 512), tokens, dtype=dtype, kernel=kernel, weight_on_input=weigh)
        for hidden, tokens, dtype, weigh in product((2048, 96, 272), (1, 4096), DTYPES, (False, True))
    ]
    gemms = [plan.launch(stage) for plan in planned for stage in ("gate_up", "down")]
    gated_values = set().union(
        *(values(launch) for launch in gated(gpu.capability) if launch.kernel == gemms[0].kernel)
    )
    assert set().union(*map(values, gemms)) <= gated_values
    blocks = {block_m for _, block_m in block_m_steps(gpu, VARIANTS[kernel])}
    assert {gemm.constexpr("BLOCK_M") for gemm in gemms} == blocks


@pytest.mark.parametrize("capability", gates.GATED, ids=gates.arch_name)
def test_every_cut_scale_dtype_and_weight_of_the_gemvs_is_gated(capability):
    own = "*fp8e4nv" if ARCHITECTURES[capability].native_e4m3 else "*u8"
    crossed = {(*cut, 32, own, f"*{dtype}") for cut, dtype in product((WIDE, NARROW), DTYPES)}
    found = _constants(capability, "gemv.linear_gemv", "BLOCK_N", "WORDS", "K_UNIT")
    assert found == crossed | {(*NARROW, 16, own, "*bf16")}
    crossed = {(weighted, *gate) for weighted, gate in product((False, True), crossed)}
    crossed |= {(weighted, *NARROW, 16, own, "*bf16") for weighted in (False, True)}
    crossed |= {(True, *WIDE, 32, "*u8", "*bf16"), (True, *NARROW, 16, "*u8", "*fp16")} if own != "*u8" else set()
    assert _constants(capability, "gemv.w4a16_gemv", "WEIGHTED", "BLOCK_N", "WORDS", "K_UNIT") == crossed


@pytest.mark.parametrize("capability", gates.GATED, ids=gates.arch_name)
def test_every_block_split_and_dtype_of_the_linear_gemm_is_gated(capability):
    own = "*fp8e4nv" if ARCHITECTURES[capability].native_e4m3 else "*u8"
    crossed = set(product((16, 64), (32,), (False, True), (own,), (f"*{dtype}" for dtype in DTYPES)))
    crossed |= {
        (m, 16, partial, own, dtype) for m, dtype in ((16, "*bf16"), (64, "*fp16")) for partial in (False, True)
    }
    assert _constants(capability, "linear.linear_gemm", "BLOCK_M", "K_UNIT", "PARTIAL") == crossed


def _constants(capability: tuple[int, int], kernel: str, *names: str) -> set[tuple]:
    """These constexprs of every gated launch of `kernel`, its type of scales and its dtype."""
    launches = [launch for launch in gated(capability) if launch.kernel == kernel]
    types = [dict(launch.arguments) for launch in launches]
    values = [[launch.constexpr(name) for name in names] for launch in launches]
    return {(*value, kinds["scale"], kinds["x"]) for value, kinds in zip(values, types, strict=True)}


UNNAMED = [Gpu(f"a new {gates.arch_name(capability)}", capability) for capability in gates.GATED]


@pytest.mark.parametrize("gpu", [PORTABLE, *CARDS, *UNNAMED], ids=lambda g: g.name)
def test_no_token_count_and_no_shape_reaches_a_binary_that_is_not_gated(gpu):
    """Every 12 % between 1 and 40,000 tokens, in every dtype and weighted either way: their sizes are no constants."""
    known = gpu.capability in ARCHITECTURES
    listed = {_binary(launch) for launch in gated(gpu.capability if known else (8, 0))}
    for tokens in sorted({int(1.12**step) for step in range(95)}):
        for (name, shape), dtype, weigh in product(SHAPES.items(), DTYPES, (False, True)):
            options = {"dtype": dtype, "weight_on_input": weigh}
            plans = [plan_layer(gpu, shape, tokens, kernel="prefill", **options)]
            plans += [plan_layer(gpu, shape, 1, kernel="decode", **options)] if tokens == 1 else []
            missing = {_binary(launch) for plan in plans for launch in plan.launches} - listed
            assert not missing, f"{name} with {tokens} tokens on {gpu.name} runs what is not gated: {missing}"


@pytest.mark.parametrize("gpu", [g for g in CARDS if w4a4.is_native(g, "3.8.0")], ids=lambda g: g.name)
def test_with_input_scales_nothing_reaches_a_binary_that_is_not_gated(gpu):
    """FP4 hardware runs W4A4 then, whose gate_up is another binary for every activation."""
    listed = {_binary(launch) for launch in gated(gpu.capability)}
    kernels = set()
    for tokens in sorted({int(1.12**step) for step in range(95)}):
        for (name, shape), dtype, activation, weigh in product(SHAPES.items(), DTYPES, ACTIVATIONS, (False, True)):
            options = {"dtype": dtype, "activation": activation, "weight_on_input": weigh}
            plan = plan_layer(gpu, shape, tokens, input_scales=True, **options)
            kernels.add(plan.kernel)
            missing = {_binary(launch) for launch in plan.launches} - listed
            assert not missing, f"{name} with {tokens} tokens on {gpu.name} runs what is not gated: {missing}"
    assert w4a4.NATIVE in kernels


def _binary(launch):
    return replace(launch, stage="")


@pytest.mark.fault("triton-lang/triton#7549")
@pytest.mark.parametrize("triton", TRITONS)
def test_a_release_without_the_native_dot_gates_one_that_must_fail(triton):
    """triton-lang/triton#7549: both GEMMs, and a line of the table says that they fail: a pass would be red."""
    for gpu in CARDS:
        if w4a4.is_native(gpu, gates.DEFAULT_TRITON) and not w4a4.is_native(gpu, triton):
            native = [gate for gate in gates.launches(triton) if gate[0] == gpu.capability and _is_native(gate[1])]
            assert {launch.stage for _, launch in native} == {"gate_up", "down"}
            for gate in native:
                assert known_failure(*gate, triton).instruction == f"*{w4a4.FP4_KIND}"


def _is_native(launch) -> bool:
    return w4a4.FP4_KIND in (launch.instruction or "")
