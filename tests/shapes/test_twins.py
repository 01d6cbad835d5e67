"""Order-free twins of the published shapes: experts, hidden and intermediate as they are, and one right answer in bits.

A twin's routes use a few of its experts, the first and the last among them. Only these are drawn and proved, as a layer
of their own: what the output depends on is the same in both. The others hold NaN wherever one can stand, so that a
scale read beside its expert shows at once. Two slots: in bf16 the sum over more is order-free for few columns only.
"""

from dataclasses import fields

import pytest
import torch

from nvfp4_suite.contract.banks import ExpertBanks
from nvfp4_suite.contract.case import Case, Inputs, torch_dtype
from nvfp4_suite.contract.kernel import DTYPES, Kernel
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.registry import KERNELS
from nvfp4_suite.reference import judge
from nvfp4_suite.reference.draws.layer import draw

from ..engine import runs_here
from ..held import held
from ..moe.subject import run_kernel
from .layer import SHAPES, activation, expected_of

USED, SLOTS, TOKENS = 4, 2, 4
NAN_SCALE = 0x7F
LIMIT = 64.0  # of swigluoai, whose published 7 leaves no gate that alpha saturates


def _case(name: str, dtype: str) -> Case:
    """The used experts as a layer of their own."""
    shape = SHAPES[name]
    used = LayerShape(USED, min(SLOTS, shape.top_k), shape.hidden, shape.intermediate)
    return Case(used, TOKENS, dtype=dtype, activation=activation(name), activation_limit=LIMIT)


RUNS = [
    pytest.param(name, dtype, kernel, id=f"{name}-{dtype}-{kernel.name}")
    for name in SHAPES
    for dtype in DTYPES
    for kernel in KERNELS.values()
    if kernel.promise.takes(_case(name, dtype)) and runs_here(kernel)
]


def _among(inputs: Inputs, experts: int) -> Inputs:
    """The same layer with so many experts, of which it uses its own alone, evenly spread from the first to the last."""
    places = torch.linspace(0, experts - 1, inputs.banks.experts, device=inputs.topk_ids.device).long()
    banks = {}
    for field in fields(ExpertBanks)[:6]:
        used = getattr(inputs.banks, field.name)
        whole = used.new_empty(experts, *used.shape[1:])
        whole.view(torch.uint8).fill_(NAN_SCALE)  # a float32 of these bytes is no NaN
        if used.dtype == torch.float32:
            whole.fill_(torch.nan)
        whole.view(torch.uint8)[places] = used.view(torch.uint8)
        banks[field.name] = whole
    ids = places[inputs.topk_ids.long()].to(torch.int32)
    return Inputs(inputs.hidden_states, ExpertBanks(**banks), inputs.topk_weights, ids)


@held(maxsize=1)
def _twin(name: str, dtype: str, device: str) -> tuple[Case, Inputs, torch.Tensor]:
    case = _case(name, dtype)
    with torch.device(device):
        inputs = draw(case)
    expected = expected_of(inputs, case, "w4a16").to(torch_dtype(dtype))
    return case, _among(inputs, SHAPES[name].experts), expected


@pytest.mark.parametrize(("name", "dtype", "kernel"), RUNS)
def test_a_twin_has_the_references_bits(name: str, dtype: str, kernel: Kernel, device):
    case, inputs, expected = _twin(name, dtype, device)
    actual = run_kernel(kernel, inputs, device, **case.options)
    judge.bitwise(actual, expected, case=case.id, experts=SHAPES[name].experts, kernel=kernel.name)
