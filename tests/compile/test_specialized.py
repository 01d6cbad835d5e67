"""The warp-specialized GEMMs in Gluon: what a gate does not ask of them."""

import re
from dataclasses import replace
from functools import lru_cache

import pytest

from nvfp4_suite.ci import gates
from nvfp4_suite.ci.gate_compile import compiled
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.kernel import ACTIVATIONS
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.launch import Launch
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.w4a4 import NATIVE, SPECIALIZED, SPECIALIZED_DOWN, SPECIALIZED_GATE_UP

CARD = Gpu("NVIDIA GeForce RTX 5090", (12, 0))
TOKENS = {16: 1, 32: 512, 64: 4096}  # a number of them for each block
FLOAT_INSTRUCTION = re.compile(r"^\s+(?:@\S+ )?([a-z][\w.]*\.(?:f16|f32|bf16))(?:x2)?\s", re.MULTILINE)

every_stage = pytest.mark.parametrize("stage", ["gate_up", "down"])


def launch_of(stage: str, block_m: int, kernel: str = SPECIALIZED, **options) -> Launch:
    shape = LayerShape(256, 8, 2048, 1024)
    return plan_layer(CARD, shape, TOKENS[block_m], input_scales=True, kernel=kernel, **options).launch(stage)


@lru_cache
def texts_of(launch: Launch) -> dict[str, str]:
    """What the compiler makes of `launch` on the way: its own IR, "ttgir", and "ptx"."""
    found = compiled(launch, (12, 0)).asm
    return {stage: found[stage] for stage in ("ttgir", "ptx")}


def scale_layouts(launch: Launch) -> list[dict[str, str]]:
    """How the compiled dots of `launch` have the scales of their first and second operand."""
    text = texts_of(launch)["ttgir"]
    layouts = dict(re.findall(r"^(#linear\d*) = #ttg.linear<\{(.*)\}>$", text, re.MULTILINE))
    dots = re.findall(r"tt\.dot_scaled .* : .*f8E4M3FN, (#\w+)> \* .*f8E4M3FN, (#\w+)>", text)
    assert dots
    (found,) = set(dots)
    return [layouts[name] for name in found]


@pytest.mark.parametrize("block_m", [16, 32])
def test_scales_lie_as_the_compiler_itself_lays_them(block_m):
    """Gluon asks its user for them, and computes nonsense of any other: the plain form's are the compiler's choice.

    With a block of 64 it spreads the warps over both dimensions; a plain gate_up has more warps.
    """
    assert scale_layouts(launch_of("down", block_m)) == scale_layouts(launch_of("down", block_m, NATIVE))


@pytest.mark.parametrize("block_m", TOKENS)
def test_both_gemms_multiply_the_same_tile(block_m):
    assert scale_layouts(launch_of("gate_up", block_m)) == scale_layouts(launch_of("down", block_m))


@every_stage
@pytest.mark.parametrize("block_m", TOKENS)
def test_everything_is_loaded_in_pieces_of_16_and_4_bytes_behind_a_barrier(block_m, stage):
    """Which needs that the compiler knows what K is a multiple of: else it would not compile, or load single bytes."""
    ptx = texts_of(launch_of(stage, block_m))["ptx"]
    assert set(re.findall(r"cp\.async\.c\w\.shared\.global .*, (0x\w+),", ptx)) == {"0x10", "0x4"}
    assert ptx.count("cp.async.mbarrier.arrive.noinc") == 1
    assert len(re.findall("bar.sync .*\n(?:.*\n){0,5}.*mbarrier.arrive.shared", ptx)) == 3  # of a stage, of sums: twice


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_follows_the_sums_is_the_plain_forms_arithmetic(activation):
    """The same instructions on floats, one or two at a time: nothing is fused, nothing passes through 16 bits."""
    launches = (launch_of("gate_up", 32, kernel, activation=activation) for kernel in (SPECIALIZED, NATIVE))
    found, plain = (set(FLOAT_INSTRUCTION.findall(texts_of(one)["ptx"])) for one in launches)
    assert {"div.rn.f32", "mul.rn.f32"} <= found == plain


def test_its_gates_show_every_block_dtype_and_option():
    for capability in ((12, 0), (12, 1)):
        of = {SPECIALIZED_GATE_UP: [], SPECIALIZED_DOWN: []}
        for listed, launch in gates.launches():
            if listed == capability and launch.kernel in of:
                of[launch.kernel].append(launch)
        for launches in of.values():
            assert {launch.constexpr("BLOCK_M") for launch in launches} == set(TOKENS)
            assert {launch.instruction for launch in launches} == {"mma.sync kind::mxf4nvf4"}
        assert {launch.constexpr("ACTIVATION") for launch in of[SPECIALIZED_GATE_UP]} == set(ACTIVATIONS)
        assert {dict(launch.arguments)["out"] for launch in of[SPECIALIZED_DOWN]} == {"*bf16", "*fp16"}
        assert {launch.constexpr("WEIGHTED") for launch in of[SPECIALIZED_DOWN]} == {True, False}


@every_stage
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)], ids=gates.arch_name)
def test_no_other_architecture_takes_it_for_its_own(capability, stage):
    launch = launch_of(stage, 16)
    with pytest.raises(gates.GateError):
        gates.check(gates.compile_in_child(launch, capability), launch, capability)


@every_stage
def test_scales_as_bytes_are_refused(stage):
    """They would be read as powers of two."""
    launch = launch_of(stage, 16)
    arguments = tuple((name, kind.replace("fp8e4nv", "u8")) for name, kind in launch.arguments)
    launch = replace(launch, arguments=arguments)
    with pytest.raises(gates.GateError):
        gates.check(gates.compile_in_child(launch, (12, 0)), launch, (12, 0))
