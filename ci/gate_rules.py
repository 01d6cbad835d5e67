"""What must hold of a launch's binary, as a table: by kernel, and for all of them."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..contract.gpus import ARCHITECTURES
from ..kernels import hopper, hopper_gemv
from ..kernels.launch import Launch
from ..kernels.tiles import Tile, shared_memory
from ..kernels.variants import FORMS, Variant
from ..kernels.w4a4 import FP4_KIND
from .gate_compile import arch_name
from .gate_facts import Capability, Facts, GateError

PLANNED_FOR = "3.8.0"  # the release whose shared memory kernels/tiles.py states


@dataclass(frozen=True)
class Must:
    """`narrow_products`: how many 32-bit products of run-time values may be in addresses, None for any number.

    `no_barriers`: threads never wait for each other. `e4m3_from`: the types that may be converted to e4m3; a value that
    came by way of fp16 was rounded twice.
    """

    narrow_products: int | None = 0
    no_barriers: bool = False
    e4m3_from: tuple[str, ...] = ()


# routing.py addresses `counts` in 32 bits: it has one element per chunk of routes and expert, far fewer than 2^31.
_COUNTS = Must(narrow_products=None)
_POINTWISE = Must(no_barriers=True)

KERNELS: dict[str, Must] = {
    "gemm.w4a16_gemm": Must(),
    "gemm_two_dots.w4a16_pair_gemm": Must(),
    "gemm_two_dots.w4a16_table_gemm": Must(),
    "gemv.w4a16_gemv": Must(),
    "gemv.linear_gemv": Must(),
    hopper_gemv.GEMV: Must(),
    "linear.linear_gemm": Must(narrow_products=1),  # which part x its bytes of a row: below one row's
    "linear.sum_splits": Must(),
    "pointwise.gated_activation": _POINTWISE,
    "pointwise.sum_routes": _POINTWISE,
    "pointwise.weigh_input": _POINTWISE,
    "pointwise.interleave_k": Must(),  # through shared memory
    "routing.count_routes": _COUNTS,
    "routing.scan_counts": _COUNTS,
    "routing.place_routes": _COUNTS,
    "routing.list_blocks": Must(),
    "quantize.quantize_rows": Must(),
    "w4a4.w4a4_gate_up": Must(),
    "w4a4.w4a4_down": Must(),
    hopper.GATE_UP: Must(),
    hopper.DOWN: Must(),
    "w4a4_gluon.w4a4_gate_up_specialized": Must(),
    "w4a4_gluon.w4a4_down_specialized": Must(),
}


def check(facts: Facts, launch: Launch, capability: Capability) -> None:
    """Raises GateError with all that is wrong with `facts`, the compiled `launch` for `capability`.

    There is a cubin, for this architecture; shared memory stays within the opt-in limit; all matrix instructions are
    those that the launch expects, and there are none where it expects none; nothing is spilled; dispatch knew how much
    shared memory a grouped GEMM takes; and what KERNELS says.
    """
    if wrong := [*_general(facts, launch, capability), *_of_kernel(facts, launch)]:
        raise GateError(f"{launch.label} on {arch_name(capability)}: " + "; ".join(wrong))


def _general(facts: Facts, launch: Launch, capability: Capability) -> Iterator[str]:
    arch, limit = arch_name(capability), ARCHITECTURES[capability].shared_memory
    if not facts.cubin_bytes:
        yield "there is no cubin, but should be one"
    if facts.target.rstrip("af") != arch:
        yield f"the target is {facts.target}, but should be {arch}"
    if facts.shared_bytes > limit:
        yield f"shared memory is {facts.shared_bytes:,} bytes, but should be at most {limit:,}"
    if facts.triton == PLANNED_FOR and launch.kernel in FORMS.values():
        planned = _planned(launch, capability)
        if not 0 <= planned - facts.shared_bytes <= 256:
            yield f"shared memory is {facts.shared_bytes:,} bytes, but dispatch chose the stages for {planned:,}"
    yield from _instruction(facts, launch)
    if facts.chained_dots and "tcgen05" in _kinds(facts):
        yield f"{facts.chained_dots} dots add to another's sum on tcgen05, but should not (triton-lang/triton#10821)"
    if spilled := facts.stack_bytes - facts.local_bytes:
        yield f"the stack is {spilled:,} bytes a thread (spilled registers), but should be 0"
    if facts.local_bytes:
        yield f"local memory is {facts.local_bytes:,} bytes a thread, but should be 0"


def _planned(launch: Launch, capability: Capability) -> int:
    """What dispatch thought that the GEMM takes when it chose the number of stages."""
    sizes = (launch.constexpr(name) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_KB"))
    form = next(form for form, kernel in FORMS.items() if kernel == launch.kernel)
    variant = Variant(form, scale_words=dict(launch.constexprs).get("SCALE_WORDS", False))
    return shared_memory(Tile(*sizes, launch.num_warps, launch.num_stages), ARCHITECTURES[capability], variant)


def _instruction(facts: Facts, launch: Launch) -> Iterator[str]:
    """`launch.instruction` is a kind, perhaps with a part of the name: "tcgen05 kind::mxf4nvf4"."""
    kinds = sorted(_kinds(facts))
    expected, _, part = (launch.instruction or "").partition(" ")
    if kinds != ([expected] if expected else []) or not all(part in one for one in facts.instructions):
        found = " and ".join(facts.instructions if part else kinds) or "none"
        yield f"the matrix instruction is {found}, but should be {launch.instruction or 'none'}"
    if part == FP4_KIND and not facts.fp4_instructions:
        yield "the machine code has no FP4 instruction, but should have some"


def _kinds(facts: Facts) -> set[str]:
    return {instruction.split(" ")[0] for instruction in facts.instructions}


def _of_kernel(facts: Facts, launch: Launch) -> Iterator[str]:
    if launch.kernel not in KERNELS:
        yield "there is no entry in ci/gate_rules.py for this kernel, but should be one"
        return
    must = KERNELS[launch.kernel]
    if must.narrow_products is not None and facts.narrow_products > must.narrow_products:
        found = f"{facts.narrow_products} 32-bit products of run-time values are in addresses"
        yield f"{found}, but should be at most {must.narrow_products}: offsets are 64-bit numbers"
    if must.no_barriers and facts.barriers:
        yield f"there are {facts.barriers} barriers, but should be none"
    if rounded := set(facts.to_e4m3) - set(must.e4m3_from):
        allowed = " or ".join(must.e4m3_from) or "nothing"
        yield f"e4m3 is converted from {' and '.join(sorted(rounded))}, but should be from {allowed}"
    if launch.kernel in (hopper.GATE_UP, hopper.DOWN):
        yield from _of_hopper(facts, launch)
    if dict(launch.constexprs).get("SCALE_WORDS") and (waiting := _waiting(facts)):
        yield f"the loop waits for {waiting}, but should load scale words by cp.async"


def _of_hopper(facts: Facts, launch: Launch) -> Iterator[str]:
    products, planned = hopper.products_in_code(launch), hopper.shared_memory(launch)
    if facts.warpgroup_arrives != products:
        found = f"{facts.warpgroup_arrives} times, but should {products} times, once a product"
        yield f"a warp group waits for its registers {found}: wgmma must not be taken apart"
    if facts.shared_bytes != planned:
        yield f"shared memory is {facts.shared_bytes:,} bytes, but should be {planned:,}, the ring's"
    if facts.registers > (most := hopper.most_registers(launch)):
        yield f"there are {facts.registers} registers a thread, but should be at most {most}: fewer programs fit an SM"


def _waiting(facts: Facts) -> str:
    """The loads that a loop waits for: those that no pipeline is filled by."""
    return " and ".join(copy for copy in facts.loop_copies if copy.startswith("ld "))
