"""Real trained weights, quantized and stored by two producers' own tools, through every kernel."""

from itertools import product
from pathlib import Path

import pytest
from safetensors.torch import load_file

from nvfp4_suite.contract.case import Inputs, torch_dtype
from nvfp4_suite.contract.checkpoint import load_experts
from nvfp4_suite.contract.kernel import Kernel
from nvfp4_suite.kernels.registry import KERNELS
from nvfp4_suite.reference import bounds, judge

from ..engine import INTERPRETED, runs_here, tokens_here
from .subject import layer_arguments, run_kernel

CHECKPOINTS = Path(__file__).parent.parent / "data" / "checkpoints"
LAYERS = list(product(("modelopt", "compressed-tensors"), (0, 1), ("bf16", "fp16")))
LESS = [("modelopt", 0, "bf16"), ("compressed-tensors", 1, "fp16")]  # W4A4 takes the interpreter many seconds each


def _layers(kernel: Kernel) -> list:
    layers = LESS if INTERPRETED and "w4a4" in kernel.promise.formats else LAYERS
    return [pytest.param(*layer, kernel, id="-".join([*map(str, layer), kernel.name])) for layer in layers]


HERE = [layer for kernel in KERNELS.values() if runs_here(kernel) for layer in _layers(kernel)]


@pytest.mark.parametrize(("producer", "layer", "dtype", "kernel"), HERE)
def test_kernel_is_within_its_bound(producer: str, layer: int, dtype: str, kernel: Kernel, device):
    given = load_file(CHECKPOINTS / "layer_io.safetensors")
    banks = load_experts(CHECKPOINTS / producer, layer)
    tokens = tokens_here(kernel, given["topk_ids"].shape[1])
    x, weights, ids = (given[name][tokens] for name in ("hidden_states", "topk_weights", "topk_ids"))
    inputs = Inputs(x.to(torch_dtype(dtype)), banks, weights, ids)
    actual = run_kernel(kernel, inputs, device)
    where = {"producer": producer, "layer": layer, "kernel": kernel.name}
    judge.bounded(actual, bounds.enclose(*layer_arguments(inputs), rounding=kernel.promise.rounding), **where)
