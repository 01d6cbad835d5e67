"""Real trained weights, quantized and stored by two producers' own tools, through every kernel."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nvfp4_suite.contract.case import Inputs
from nvfp4_suite.contract.checkpoint import load_experts
from nvfp4_suite.contract.kernel import Kernel
from nvfp4_suite.kernels.registry import KERNELS
from nvfp4_suite.reference import bounds, judge

from ..engine import runs_here
from .subject import layer_arguments, run_kernel

CHECKPOINTS = Path(__file__).parent.parent / "data" / "checkpoints"
HERE = {name: kernel for name, kernel in KERNELS.items() if runs_here(kernel)}


@pytest.mark.parametrize("kernel", HERE.values(), ids=HERE.keys())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("producer", ["modelopt", "compressed-tensors"])
def test_kernel_is_within_its_bound(producer: str, layer: int, dtype, kernel: Kernel, device):
    given = load_file(CHECKPOINTS / "layer_io.safetensors")
    banks = load_experts(CHECKPOINTS / producer, layer)
    inputs = Inputs(given["hidden_states"].to(dtype), banks, given["topk_weights"], given["topk_ids"])
    actual = run_kernel(kernel, inputs, device)
    where = {"producer": producer, "layer": layer, "kernel": kernel.name}
    judge.bounded(actual, bounds.enclose(*layer_arguments(inputs), rounding=kernel.promise.rounding), **where)
