"""The warp-specialized W4A4 down, whose FP4 instruction no hardware here has: on a GPU without, all the rest of it.

There the operands of each instruction are decoded and multiplied in 16 bits, which gives the same sums; loads,
barriers, the order of tiles and the stores are those of sm_120. Triton's interpreter runs no Gluon.
"""

import pytest
import triton

from nvfp4_suite.cases.stages import GemmCase
from nvfp4_suite.contract import gpus
from nvfp4_suite.contract.case import torch_dtype
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import w4a4_layer
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.w4a4 import SPECIALIZED, SPECIALIZED_DOWN, SPECIALIZED_TRITONS
from nvfp4_suite.reference import judge, moe
from nvfp4_suite.reference.rounding import rounding_form

from ..stages import w4a4_launches as launches
from ..stages.launches import drawn
from ..stages.test_w4a4 import together

# An earlier Triton does not compile it: there the kernel's name stands for a plain down, here a decoded one.
KNOWN = triton.__version__.split("+")[0] in SPECIALIZED_TRITONS[12, 0]
CARD = Gpu("NVIDIA GeForce RTX 5090", (12, 0)) if KNOWN else Gpu("NVIDIA A100-SXM4-80GB", (8, 0))

# K of half a step, of whole steps and of more than the ring has; N that is no multiple of a tile; every block.
CASES = [
    GemmCase(8, 96, 64, format="w4a4"),
    GemmCase(8, 272, 640, format="w4a4", dtype="fp16", experts=3),
    GemmCase(17, 144, 320, format="w4a4"),
    GemmCase(70, 272, 1088, format="w4a4", dtype="fp16", experts=3),
]


@pytest.fixture
def multiplied(monkeypatch):
    """The FP4 instruction where this GPU has it, and what stands in for it elsewhere."""
    if KNOWN and gpus.current(0).capability not in SPECIALIZED_TRITONS:
        from nvfp4_suite.kernels.device import w4a4_gluon

        from .decoded_product import multiply_decoded

        monkeypatch.setattr(w4a4_gluon, "multiply_blocks", multiply_decoded)


@pytest.mark.parametrize("programs", [1, 2, 5, 1000])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
@pytest.mark.usefixtures("multiplied")
def test_down_gemm(case: GemmCase, programs: int, device, monkeypatch):
    monkeypatch.setattr(w4a4_layer, "resident_programs", lambda *_: programs)
    shape = LayerShape(case.experts, 1, case.n, case.k)
    plan = plan_layer(CARD, shape, case.rows * case.experts, dtype=case.dtype, kernel=SPECIALIZED, input_scales=True)
    assert (plan.launch("down").kernel == SPECIALIZED_DOWN) == KNOWN
    form, gemms = rounding_form("w4a4", torch_dtype(case.dtype)), drawn(case)
    found = launches.down(plan, *together(gemms), torch_dtype(case.dtype), device)
    for expert, one in enumerate(gemms):
        expected = moe.down(*one.operands(), one.topk_weights.double(), form)
        judge.bitwise(found[expert :: len(gemms)], expected.to(one.dtype), case=case.id, programs=programs)
