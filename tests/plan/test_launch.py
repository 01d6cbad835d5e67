"""Launch: what decides a binary, and what does not."""

from dataclasses import fields, replace

import pytest

from nvfp4_suite.kernels.launch import Launch

LAUNCH = Launch("down", "gemm.w4a16_gemm", (("x", "*bf16"), ("N", "i32")), ("x", "N"), (("BLOCK_M", 64),))
CHANGED = {
    "stage": "gate_up",
    "kernel": "gemm.other",
    "arguments": (("x", "*fp16"), ("N", "i32")),
    "divisible": ("x",),
    "constexprs": (("BLOCK_M", 32),),
    "num_warps": 8,
    "num_stages": 3,
    "instruction": "wgmma",
    "fp_fusion": True,
}


@pytest.mark.parametrize("name", [field.name for field in fields(Launch)])
def test_all_but_the_place_and_what_is_expected_decides_the_binary(name):
    other = replace(LAUNCH, **{name: CHANGED[name]})
    assert other != LAUNCH and (other.binary == LAUNCH.binary) == (name in ("stage", "instruction"))
