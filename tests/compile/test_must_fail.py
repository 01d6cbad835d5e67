"""A gate that must fail does, and says what was wrong, what it was and what it should be."""

import os
from dataclasses import replace

import pytest

from nvfp4_suite.ci import gates
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.launch import Launch
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.tiles import Tile

H100 = Gpu("NVIDIA H100 80GB HBM3", (9, 0))


def launch_of(stage: str, tile: Tile | None = None, kernel: str = "prefill") -> Launch:
    """One launch of a plan for the H100: fp8 scale pointers, room for large tiles, wgmma."""
    return plan_layer(H100, LayerShape(256, 8, 2048, 512), 1, override=tile, kernel=kernel).launch(stage)


def refused(launch: Launch, capability: tuple[int, int], message: str) -> None:
    with pytest.raises(gates.GateError, match=message):
        gates.check(gates.compile_in_child(launch, capability), launch, capability)


def test_an_fp8_pointer_on_sm_80() -> None:
    refused(launch_of("gate_up"), (8, 0), "gate_up .*on sm_80 does not compile, but should: .*fp8e4nv not supported")


@pytest.mark.fault("NVIDIA/TransformerEngine#3062")
def test_a_tile_over_the_shared_memory_limit() -> None:
    """It compiles: only the limit tells that it cannot be launched."""
    launch = replace(launch_of("gate_up", Tile(256, 64, 64, 8, 3)), instruction="mma.sync")
    refused(launch, (8, 9), "on sm_89: shared memory is 1[0-9]{2},[0-9]{3} bytes, but should be at most 101,376")


def test_shared_memory_that_dispatch_did_not_know_of() -> None:
    """kernels/tiles.py states what Triton 3.8.0 takes; what another takes is held to the limit alone."""
    launch = launch_of("gate_up")
    facts = gates.compile_in_child(launch, (9, 0))
    more = replace(facts, shared_bytes=facts.shared_bytes + 1)
    with pytest.raises(gates.GateError, match=r"shared memory is .* bytes, but dispatch chose the stages for "):
        gates.check(more, launch, (9, 0))
    gates.check(replace(more, triton="3.9.0"), launch, (9, 0))


def test_spilled_registers() -> None:
    refused(launch_of("gate_up", Tile(256, 128, 32, 4, 3)), (9, 0), r"on sm_90: the stack is \d.* bytes .*should be 0$")


def test_spilled_registers_of_a_gemv() -> None:
    """A kernel without a dot, in which a thread has 128 words a step instead of 16."""
    launch = launch_of("gate_up", kernel="decode")
    constants = dict(launch.constexprs) | {"BLOCK_N": 32}
    launch = replace(launch, constexprs=tuple(constants.items()), num_warps=1)
    refused(launch, (9, 0), r"on sm_90: the stack is \d.* bytes .*should be 0$")


@pytest.mark.fault("triton-lang/triton#10821")
@pytest.mark.parametrize("capability", [(10, 0), (10, 3), (11, 0)], ids=gates.arch_name)
@pytest.mark.parametrize("form", ["pair", "table"])
def test_two_dots_on_tcgen05(form, capability) -> None:
    """A plan expects mma.sync of them there: two dots into one accumulator go wrong (triton-lang/triton#10821)."""
    launch = replace(launch_of("gate_up", Tile(64), f"prefill_w4a16_{form}"), instruction="mma.sync")
    message = "the matrix instruction is tcgen05, but should be mma.sync; 1 dots add to another's sum on tcgen05"
    refused(launch, capability, message)


@pytest.mark.parametrize(
    ("stage", "expected", "message"),
    [
        ("gate_up", "tcgen05", "the matrix instruction is wgmma, but should be tcgen05$"),
        ("gate_up", None, "the matrix instruction is wgmma, but should be none$"),
        ("sum_routes", "wgmma", "the matrix instruction is none, but should be wgmma$"),
    ],
)
def test_a_wrong_expected_instruction(stage, expected, message) -> None:
    refused(replace(launch_of(stage), instruction=expected), (9, 0), message)


def native(stage: str, capability: tuple[int, int], **constants: int) -> Launch:
    shape = LayerShape(256, 8, 2048, 512)
    launch = plan_layer(Gpu("", capability), shape, 1, kernel="w4a4", input_scales=True).launch(stage)
    return replace(launch, constexprs=tuple((dict(launch.constexprs) | constants).items()))


@pytest.mark.fault("triton-lang/triton#7549")
@pytest.mark.parametrize("capability", [(10, 0), (10, 3)], ids=gates.arch_name)
def test_a_native_dot_that_silently_became_another(capability) -> None:
    """triton-lang/triton#7549: with 64 rows there is no error, and no FP4 instruction either."""
    message = r"the matrix instruction is tcgen05 \S*kind::f16, but should be tcgen05 kind::mxf4nvf4; "
    message += "the machine code has no FP4 instruction, but should have some$"
    refused(native("down", capability, BLOCK_N=64), capability, message)


@pytest.mark.fault("triton-lang/triton#7549")
@pytest.mark.parametrize("capability", [(10, 0), (12, 0)], ids=gates.arch_name)
def test_an_fp4_instruction_that_the_assembler_replaced(capability) -> None:
    """triton-lang/triton#7549: what the PTX asks for is not yet what the machine code has."""
    launch = native("down", capability)
    facts = gates.compile_in_child(launch, capability)
    gates.check(facts, launch, capability)
    with pytest.raises(gates.GateError, match=r": the machine code has no FP4 instruction, but should have some$"):
        gates.check(replace(facts, fp4_instructions=0), launch, capability)


@pytest.mark.parametrize("capability", [(10, 0), (12, 0)], ids=gates.arch_name)
def test_a_native_dot_on_scales_as_bytes(capability) -> None:
    """tl.dot_scaled would read them as powers of two."""
    launch = native("down", capability)
    arguments = tuple((name, kind.replace("fp8e4nv", "u8")) for name, kind in launch.arguments)
    refused(replace(launch, arguments=arguments), capability, "does not compile, but should")


def test_one_of_two_dots_on_another_instruction() -> None:
    launch = launch_of("gate_up")
    facts = gates.compile_in_child(launch, (9, 0))
    mixed = replace(facts, instructions=(*facts.instructions, "mma.sync m16n8k16.row.col.f32.bf16.bf16.f32"))
    with pytest.raises(gates.GateError, match=r"is mma\.sync and wgmma, but should be wgmma$"):
        gates.check(mixed, launch, (9, 0))


def test_another_architecture_and_no_cubin() -> None:
    launch = launch_of("sum_routes")
    facts = replace(gates.compile_in_child(launch, (10, 3)), cubin_bytes=0)
    with pytest.raises(
        gates.GateError, match=r"on sm_100: there is no cubin, .*; the target is sm_103a, but should be sm_100$"
    ):
        gates.check(facts, launch, (10, 0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda a: {"arguments": a[1:]},
            "the arguments are topk_ids, .*, but pointwise.sum_routes takes route_out, topk_ids",
        ),
        (lambda a: {"arguments": (a[1], a[0], *a[2:])}, "the arguments are topk_ids, route_out, "),
        (lambda a: {"arguments": (*a, ("more", "i32"))}, "the arguments are .*, more, BLOCK, but "),
        (lambda a: {"constexprs": ()}, "the arguments are .*, experts, but "),
        (lambda a: {"divisible": ("rows",)}, "divisible names rows, but should name arguments only"),
        (lambda a: {"divisible": ()}, "columns is neither declared divisible nor in do_not_specialize"),
        (lambda a: {"divisible": ("columns", "top_k")}, "top_k is declared divisible and in do_not_specialize"),
    ],
    ids=[
        "one missing",
        "swapped",
        "one more",
        "no constexpr",
        "not an argument",
        "undeclared integer",
        "declared twice",
    ],
)
def test_a_launch_that_does_not_fit_its_function(change, message) -> None:
    launch = launch_of("sum_routes")
    refused(replace(launch, **change(launch.arguments)), (9, 0), message)


class _EndsTheProcess:
    """Stands for an assertion inside the compiler: the process that receives it aborts."""

    def __reduce__(self):
        return os.abort, ()


def test_a_crash_of_the_compiler_costs_one_launch_only() -> None:
    launch = launch_of("sum_routes")
    refused(
        replace(launch, constexprs=(("BLOCK", _EndsTheProcess()),)), (9, 0), "on sm_90: the compiler ended its process"
    )
    gates.check(gates.compile_in_child(launch, (9, 0)), launch, (9, 0))


@pytest.mark.parametrize("exists", [True, False])
def test_an_overriding_assembler_is_named_if_it_is_the_one_used(exists, monkeypatch, tmp_path):
    """Triton falls back to its own where the path leads nowhere."""
    from triton import knobs

    bundled, other = knobs.nvidia.ptxas, tmp_path / "ptxas"
    if exists:
        other.symlink_to(bundled.path)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(other))
    used = gates.compile_launch(launch_of("sum_routes"), (8, 0)).assembler
    assert used == f"{other if exists else 'ptxas'} {bundled.version}"


def test_an_environment_that_changes_the_binary(monkeypatch) -> None:
    monkeypatch.setenv("TRITON_OVERRIDE_ARCH", "sm80")
    with pytest.raises(
        gates.GateError, match="TRITON_OVERRIDE_ARCH is set and changes what is compiled, but should not be"
    ):
        gates.compile_launch(launch_of("sum_routes"), (9, 0))
