"""The warp-specialized down in Gluon: what a gate does not ask of it."""

import re
from dataclasses import replace

import pytest

from nvfp4_suite.ci import gates
from nvfp4_suite.ci.gate_compile import compiled
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.w4a4 import NATIVE, SPECIALIZED, SPECIALIZED_DOWN

CARD = Gpu("NVIDIA GeForce RTX 5090", (12, 0))
TOKENS = {16: 1, 32: 512, 64: 4096}  # a number of them for each block


def down(block_m: int, kernel: str = SPECIALIZED):
    plan = plan_layer(CARD, LayerShape(256, 8, 2048, 1024), TOKENS[block_m], input_scales=True, kernel=kernel)
    return plan.launch("down")


def scale_layouts(launch) -> list[dict[str, str]]:
    """How the compiled dots of `launch` have the scales of their first and second operand."""
    text = compiled(launch, (12, 0)).asm["ttgir"]
    layouts = dict(re.findall(r"^(#linear\d*) = #ttg.linear<\{(.*)\}>$", text, re.MULTILINE))
    dots = re.findall(r"tt\.dot_scaled .* : .*f8E4M3FN, (#\w+)> \* .*f8E4M3FN, (#\w+)>", text)
    assert dots
    (found,) = set(dots)
    return [layouts[name] for name in found]


@pytest.mark.parametrize("block_m", [16, 32])
def test_scales_lie_as_the_compiler_itself_lays_them(block_m):
    """Gluon asks its user for them, and computes nonsense of any other: the plain form's are the compiler's choice.

    With a block of 64 it spreads the warps over both dimensions.
    """
    assert scale_layouts(down(block_m)) == scale_layouts(down(block_m, NATIVE))


@pytest.mark.parametrize("block_m", TOKENS)
def test_everything_is_loaded_in_pieces_of_16_and_4_bytes_behind_a_barrier(block_m):
    """Which needs that the compiler knows what K is a multiple of: else it would not compile, or load single bytes."""
    ptx = compiled(down(block_m), (12, 0)).asm["ptx"]
    assert set(re.findall(r"cp\.async\.c\w\.shared\.global .*, (0x\w+),", ptx)) == {"0x10", "0x4"}
    assert ptx.count("cp.async.mbarrier.arrive.noinc") == 1
    assert len(re.findall("bar.sync .*\n(?:.*\n){0,5}.*mbarrier.arrive.shared", ptx)) == 3  # of a stage, of sums: twice


def test_its_gates_show_every_block_and_dtype():
    for capability in ((12, 0), (12, 1)):
        launches = [one for listed, one in gates.launches() if (listed, one.kernel) == (capability, SPECIALIZED_DOWN)]
        assert {launch.constexpr("BLOCK_M") for launch in launches} == set(TOKENS)
        assert {dict(launch.arguments)["out"] for launch in launches} == {"*bf16", "*fp16"}
        assert {launch.constexpr("WEIGHTED") for launch in launches} == {True, False}
        assert {launch.instruction for launch in launches} == {"mma.sync kind::mxf4nvf4"}


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)], ids=gates.arch_name)
def test_no_other_architecture_takes_it_for_its_own(capability):
    launch = down(16)
    with pytest.raises(gates.GateError):
        gates.check(gates.compile_in_child(launch, capability), launch, capability)


def test_scales_as_bytes_are_refused():
    """They would be read as powers of two."""
    launch = down(16)
    arguments = tuple((name, kind.replace("fp8e4nv", "u8")) for name, kind in launch.arguments)
    launch = replace(launch, arguments=arguments)
    with pytest.raises(gates.GateError):
        gates.check(gates.compile_in_child(launch, (12, 0)), launch, (12, 0))
