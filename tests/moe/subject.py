"""A kernel on a case: the only path by which the layer tests reach what they test."""

from collections.abc import Iterable
from functools import lru_cache

import pytest
import torch

from nvfp4_suite.contract.case import Case, Inputs, random_inputs, torch_dtype
from nvfp4_suite.contract.kernel import Kernel
from nvfp4_suite.kernels import experts
from nvfp4_suite.kernels.hopper import wants_prepared
from nvfp4_suite.kernels.hopper_banks import rearranged
from nvfp4_suite.kernels.plan import LayerPlan
from nvfp4_suite.kernels.registry import KERNELS
from nvfp4_suite.reference import judge, moe
from nvfp4_suite.reference.draws.layer import draw

from ..engine import INTERPRETED, runs_here
from ..poison import poisoned_allocations
from .edges import EDGES, shape_of


def taken(cases: Iterable[Case]) -> list:
    """Parameters (case, kernel): for every registered kernel the cases that it takes and that this session runs.

    Raises ValueError for a kernel that takes none of them: it would be tested by nothing, without a word.
    """
    cases = list(cases)
    return [pair for kernel in KERNELS.values() for pair in _pairs(kernel, cases)]


def at_edge(edge: str) -> list:
    """As `taken`, of random inputs to the layer of `edge` (edges.EDGES), which is each kernel's own."""
    tokens, pairs = EDGES[edge][1], []
    for kernel in KERNELS.values():
        shape, formats = shape_of(edge, kernel.name), kernel.promise.formats
        pairs += _pairs(kernel, [Case(shape, tokens, inputs="random", format=name) for name in formats])
    return pairs


def _pairs(kernel: Kernel, cases: list[Case]) -> list:
    mine = [case for case in cases if kernel.promise.takes(case)]
    if not mine:
        raise ValueError(f"{kernel.name} takes none of {len(cases)} cases, but should be tested: {kernel.promise}")
    here = [case for case in mine if runs_here(kernel, case)]
    return [pytest.param(case, kernel, id=f"{case.id}-{kernel.name}") for case in here]


@lru_cache(maxsize=8)
def inputs_of(case: Case) -> Inputs:
    """The case's inputs on the CPU; order-free ones have passed their proof."""
    return random_inputs(case) if case.inputs == "random" else draw(case)


def inputs_on(case: Case, device: str) -> Inputs:
    """The random inputs of `case`, made on `device`."""
    with torch.device(device):
        return random_inputs(case)


@lru_cache(maxsize=8)
def expected_of(case: Case, rounding: str) -> torch.Tensor:
    """The reference's output in the case's dtype."""
    inputs = inputs_of(case)
    return moe.expert_layer(*layer_arguments(inputs), rounding=rounding, **case.options).to(torch_dtype(case.dtype))


def layer_arguments(inputs: Inputs) -> tuple:
    return inputs.hidden_states, inputs.banks, inputs.topk_weights, inputs.topk_ids


def run_kernel(kernel: Kernel, inputs: Inputs, device: str, **options) -> torch.Tensor:
    """The kernel's output on the CPU, from poisoned buffers."""
    on_device = inputs.to(device)
    prepared = kernel.prepare(on_device.banks)
    with poisoned_allocations():
        out = kernel.run(prepared, on_device.hidden_states, on_device.topk_weights, on_device.topk_ids, **options)
    return out.cpu()


def run_plan(plan: LayerPlan, case: Case, device: str) -> torch.Tensor:
    """The output of `plan`, whichever GPU it was made for, on the CPU, from poisoned buffers."""
    limits = {name: case.options[name] for name in ("activation_alpha", "activation_limit")}
    x, banks, *routing = layer_arguments(inputs_of(case).to(device))
    banks = rearranged(banks) if wants_prepared(plan.launch("gate_up")) else banks
    with poisoned_allocations():
        out = experts.run(plan, x, banks, *routing, **limits)
    return out.cpu()


def plan_options(case: Case) -> dict:
    """The case's options as plan_layer takes them."""
    names = ("dtype", "activation", "weight_on_input")
    return {name: getattr(case, name) for name in names} | {"input_scales": case.format == "w4a4"}


def context_of(case: Case) -> dict:
    """What a judge says of the case: its routing, and the command that runs it again."""
    return judge.context_of(case, "tests" if INTERPRETED else "gpu-tests")
