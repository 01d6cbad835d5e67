"""What the quantizer must not become."""

import re

import pytest

from nvfp4_suite.ci.gate_compile import compiled
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.plan import plan_layer

NARROWING = re.compile(r"cvt\.\S*\.(?:e4m3x2|f16x2|f16|bf16)\.f32")
SHAPE = LayerShape(8, 2, 2048, 512)


@pytest.mark.fault("triton-lang/triton#11753")
@pytest.mark.parametrize("stage", ["quantize", "gate_up"])
def test_no_fp32_is_converted_to_a_smaller_float(stage):
    """triton-lang/triton#11753: on sm_89 fp32 becomes e4m3 by way of fp16, which rounds twice."""
    plan = plan_layer(Gpu("NVIDIA L40S", (8, 9)), SHAPE, 64, kernel="w4a4", input_scales=True)
    assert not NARROWING.search(compiled(plan.launch(stage), (8, 9)).asm["ptx"])


def test_the_pattern_finds_a_conversion():
    plan = plan_layer(Gpu("NVIDIA L40S", (8, 9)), SHAPE, 64, kernel="w4a4", input_scales=True)
    assert NARROWING.search(compiled(plan.launch("down"), (8, 9)).asm["ptx"])  # its result is bf16
