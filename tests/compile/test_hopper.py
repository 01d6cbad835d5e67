"""The W4A16 GEMMs for sm_90: in which order their code waits, which a gate does not ask and no run has shown."""

import re
from dataclasses import replace

import pytest

from nvfp4_suite.ci import gates
from nvfp4_suite.ci.gate_compile import binary_of
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import hopper, hopper_gemv
from nvfp4_suite.kernels.plan import plan_layer

WAITS = re.compile(r"(wgmma\.wait_group\S* 0|cp\.async\.wait_group 0|stmatrix)")


@pytest.mark.parametrize("stage", ["gate_up", "down"])
def test_the_last_copies_have_ended_before_the_ring_is_used_again(stage):
    """Also those that a mask leaves out, which write zeros. K of 8 steps: nothing behind the loop waits for them."""
    plan = plan_layer(Gpu("NVIDIA H200", (9, 0)), LayerShape(8, 2, 512, 512), 8, kernel=hopper.NAME)
    launch = plan.launch(stage)
    assert launch.constexpr("REST") == 0
    ptx = binary_of(launch, (9, 0)).ptx
    found = ["".join(one.split()) for one in WAITS.findall(re.sub(r"[ \t]+", " ", ptx))]
    waits = [kind for kind, before in zip(found, ["", *found], strict=False) if kind != before]
    one_width = ["wgmma.wait_group.sync.aligned0", "cp.async.wait_group0", "stmatrix"]
    assert waits == one_width * len(hopper.widths(launch.constexpr("BLOCK_M")))


def test_a_small_tile_leaves_half_an_sm_to_another_and_its_wgmma_is_whole():
    plan = plan_layer(Gpu("NVIDIA H200", (9, 0)), LayerShape(8, 2, 512, 512), 8, kernel=hopper.NAME)
    launch = plan.launch("down")
    facts = gates.compile_in_child(launch, (9, 0))
    gates.check(facts, launch, (9, 0))
    for change, message in (
        ({"registers": 129}, "there are 129 registers a thread, but should be at most 128: fewer programs fit an SM"),
        ({"warpgroup_arrives": 64}, "waits for its registers 64 times, but should 16 times, once a product"),
        ({"shared_bytes": 115_200}, "shared memory is 115,200 bytes, but should be 102,400, the ring's"),
    ):
        with pytest.raises(gates.GateError, match=message):
            gates.check(replace(facts, **change), launch, (9, 0))


@pytest.mark.parametrize(("dtype", "weigh"), [("bf16", False), ("fp16", True)])
def test_the_gemvs_last_copies_have_ended_before_its_sums_use_the_ring(dtype, weigh):
    """The last step begins copies that a mask leaves out: zeros, which would be written over the warps' sums."""
    options = {"dtype": dtype, "weight_on_input": weigh, "kernel": hopper_gemv.NAME}
    plan = plan_layer(Gpu("NVIDIA H200", (9, 0)), LayerShape(8, 2, 1024, 1024), 1, **options)
    for stage in ("gate_up", "down"):
        ptx = binary_of(plan.launch(stage), (9, 0)).ptx
        behind = ptx[ptx.rindex("mma.sync") :]
        found = re.findall(r"cp\.async\.wait_group|bar\.sync|st\.shared", behind)
        assert found[:3] == ["cp.async.wait_group", "bar.sync", "st.shared"]
