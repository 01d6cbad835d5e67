"""Does every launch of every plan become the binary that it should, on each architecture that may run it?"""

import re
import time

import pytest

from nvfp4_suite.ci import gates
from nvfp4_suite.contract.gpus import ARCHITECTURES, Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.launch import Launch
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.tiles import Tile, shared_memory
from nvfp4_suite.kernels.variants import FORMS, Variant

_SHAPE = re.compile(r"m\d+n\d+k\d+|kind::\w+")


@pytest.mark.fault("NVIDIA/TransformerEngine#3062")
@pytest.mark.fault("triton-lang/triton#10821")
@pytest.mark.parametrize(
    ("capability", "launch"), [pytest.param(*gate, id=gates.launch_id(*gate)) for gate in gates.launches()]
)
def test_launch_compiles(capability, launch, record_property):
    record_property("arch", gates.arch_name(capability))
    record_property("kernel", launch.kernel.rsplit(".", 1)[-1])
    record_property("tile", gates.tile_name(launch) if launch.instruction or "gemv" in launch.kernel else "")
    record_property("limit", ARCHITECTURES[capability].shared_memory)
    start = time.perf_counter()
    facts = gates.compile_in_child(launch, capability)
    record_property("seconds", time.perf_counter() - start)
    for name in ("shared_bytes", "registers", "stack_bytes", "assembler"):
        record_property(name, getattr(facts, name))
    record_property("triton", f"Triton {facts.triton}")
    record_property("instruction", " and ".join(sorted({_short(form) for form in facts.instructions})))
    gates.check(facts, launch, capability)
    if launch.kernel in FORMS.values():
        assert 0 <= _planned_bytes(launch, capability) - facts.shared_bytes <= 256


def _short(instruction: str) -> str:
    """Without its types, so the same for bf16 and fp16: "wgmma m64n64k16"."""
    kind, form = instruction.split(" ")
    return f"{kind} {_SHAPE.search(form)[0]}"


def _planned_bytes(launch: Launch, capability: tuple[int, int]) -> int:
    """What dispatch thought that the GEMM takes when it chose the number of stages."""
    sizes = (launch.constexpr(name) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_KB"))
    tile = Tile(*sizes, launch.num_warps, launch.num_stages)
    form = next(form for form, kernel in FORMS.items() if kernel == launch.kernel)
    variant = Variant(form, scale_words=dict(launch.constexprs).get("SCALE_WORDS", False))
    return shared_memory(tile, ARCHITECTURES[capability], variant)


@pytest.mark.parametrize(
    ("capability", "stated"),
    [((8, 0), 37_120), ((8, 6), 37_120), ((8, 9), 37_120), ((12, 0), 37_120), ((9, 0), 53_504)],
    ids=lambda value: gates.arch_name(value) if isinstance(value, tuple) else f"{value} bytes",
)
def test_shared_memory_of_the_large_tile(capability, stated):
    """FreeToken#723: "37,120 bytes on sm_80/86/89/120, 53,504 bytes on sm_90"."""
    plan = plan_layer(Gpu("", capability), LayerShape(256, 8, 2048, 512), 1, override=Tile(128, 64, 32, 4, 3))
    assert gates.compile_in_child(plan.launch("gate_up"), capability).shared_bytes == stated


@pytest.mark.parametrize("capability", [(9, 0), (10, 0)], ids=gates.arch_name)
@pytest.mark.parametrize("warps", [1, 2])
def test_fewer_warps_than_a_warp_group_has_come_to_mma_sync(capability, warps):
    """Without a word, and with mma.sync's shared memory; only an override can ask for it."""
    tile = Tile(16, num_warps=warps)
    launch = plan_layer(Gpu("", capability), LayerShape(256, 8, 2048, 512), 1, override=tile).launch("gate_up")
    facts = gates.compile_in_child(launch, capability)
    gates.check(facts, launch, capability)
    assert facts.shared_bytes == _planned_bytes(launch, capability)
