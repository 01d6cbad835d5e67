"""Scales of an expert that no token visits stay out of every other expert's output.

The fault that this forbids (NVIDIA/Model-Optimizer#1397): calibration leaves an infinite global, or a NaN block scale,
with an expert that it never woke. Our loader refuses both; banks made by hand may carry them.
"""

import dataclasses

import pytest
import torch

from nvfp4_suite.contract.case import Case, Inputs, random_inputs
from nvfp4_suite.contract.kernel import FORMATS, Kernel
from nvfp4_suite.reference import judge, moe

from .edges import EDGES
from .subject import at_edge, layer_arguments, run_kernel

CASE = Case(*EDGES["odd input"], inputs="random")
SPOILED = {"global": float("inf"), "scale": float("nan")}


def visited(case: Case) -> Inputs:
    """Tokens of experts 0 and 1 alone."""
    inputs = random_inputs(case)
    return dataclasses.replace(inputs, topk_ids=inputs.topk_ids % 2)


def spoiled(inputs: Inputs, role: str) -> Inputs:
    """`inputs` with nothing but infinite globals, or NaN block scales, in expert 2."""
    changed = {}
    for name in (f"gate_up_{role}", f"down_{role}"):
        changed[name] = getattr(inputs.banks, name).clone()
        changed[name][2] = torch.full_like(changed[name][2].float(), SPOILED[role]).to(changed[name].dtype)
    return dataclasses.replace(inputs, banks=dataclasses.replace(inputs.banks, **changed))


@pytest.mark.fault("NVIDIA/Model-Optimizer#1397")
@pytest.mark.parametrize("role", SPOILED)
@pytest.mark.parametrize(("case", "kernel"), at_edge("odd input"))
def test_other_outputs_are_unchanged(case: Case, kernel: Kernel, role: str, device):
    inputs = visited(case)
    judge.bitwise(run_kernel(kernel, spoiled(inputs, role), device), run_kernel(kernel, inputs, device))


@pytest.mark.fault("NVIDIA/Model-Optimizer#1397")
@pytest.mark.parametrize("role", SPOILED)
@pytest.mark.parametrize("rounding", [None, *FORMATS])
def test_reference_leaves_them_out_as_well(rounding: str | None, role: str):
    case = dataclasses.replace(CASE, format=rounding or "w4a16")
    inputs = visited(case)
    with_them = moe.expert_layer(*layer_arguments(spoiled(inputs, role)), rounding=rounding)
    assert torch.equal(with_them, moe.expert_layer(*layer_arguments(inputs), rounding=rounding))
    woken = dataclasses.replace(spoiled(inputs, role), topk_ids=inputs.topk_ids * 2)
    assert not moe.expert_layer(*layer_arguments(woken), rounding=rounding).isfinite().all()
