"""Order-free twins of the published shapes: experts, hidden and intermediate as they are, and one right answer in bits.

A twin's routes use a few of its experts, the first and the last among them. Only these are drawn and proved, as a layer
of their own: what the output depends on is the same in both. The others hold NaN wherever one can stand, so that a
scale read beside its expert shows at once. Two slots: in bf16 the sum over more is order-free for few columns only.

Those of W4A4 take longer to draw: they use fewer experts, and every shape has one dtype.
"""

from dataclasses import fields
from itertools import cycle

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

USED, SLOTS, TOKENS = {"w4a16": 4, "w4a4": 2}, 2, 4
NAN_SCALE = 0x7F
LIMIT = 64.0  # of swigluoai, whose published 7 leaves no gate that alpha saturates


def _case(name: str, dtype: str, format_: str) -> Case:
    """The used experts as a layer of their own."""
    shape = SHAPES[name]
    used = LayerShape(USED[format_], min(SLOTS, shape.top_k), shape.hidden, shape.intermediate)
    options = {"activation": activation(name), "activation_limit": LIMIT, "format": format_}
    return Case(used, TOKENS, dtype=dtype, **options)


CASES = [(name, _case(name, dtype, "w4a16")) for name in SHAPES for dtype in DTYPES]
CASES += [(name, _case(name, dtype, "w4a4")) for name, dtype in zip(SHAPES, cycle(DTYPES), strict=False)]
RUNS = [
    pytest.param(name, case, kernel, id=f"{name}-{case.dtype}-{kernel.name}", marks=pytest.mark.together(case.id))
    for name, case in CASES
    for kernel in KERNELS.values()
    if kernel.promise.takes(case) and runs_here(kernel)
]


def _among(inputs: Inputs, experts: int) -> Inputs:
    """The same layer with so many experts, of which it uses its own alone, evenly spread from the first to the last."""
    places = torch.linspace(0, experts - 1, inputs.banks.experts, device=inputs.topk_ids.device).long()
    banks = {}
    for field in fields(ExpertBanks):
        if (used := getattr(inputs.banks, field.name)) is None:
            continue
        whole = used.new_empty(experts, *used.shape[1:])
        if used.dtype == torch.float32:  # of input scales, the largest of all experts is the layer's
            whole.fill_(torch.nan if used.dim() > 1 else used.min())
            whole[places] = used
        else:
            whole.view(torch.uint8).fill_(NAN_SCALE)
            whole.view(torch.uint8)[places] = used.view(torch.uint8)
        banks[field.name] = whole
    ids = places[inputs.topk_ids.long()].to(torch.int32)
    return Inputs(inputs.hidden_states, ExpertBanks(**banks), inputs.topk_weights, ids)


@held(maxsize=1)
def _twin(name: str, case: Case, device: str) -> tuple[Inputs, torch.Tensor]:
    with torch.device(device):
        inputs = draw(case)
    expected = expected_of(inputs, case, case.format).to(torch_dtype(case.dtype))
    return _among(inputs, SHAPES[name].experts), expected


@pytest.mark.parametrize(("name", "case", "kernel"), RUNS)
def test_a_twin_has_the_references_bits(name: str, case: Case, kernel: Kernel, device):
    inputs, expected = _twin(name, case, device)
    actual = run_kernel(kernel, inputs, device, **case.options)
    judge.bitwise(actual, expected, case=case.id, experts=SHAPES[name].experts, kernel=kernel.name)
