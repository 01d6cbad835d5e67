"""A layer's activation, at gates and ups that tell it from its near relatives: chosen in x, seen in the output.

Seen in vllm-project/vllm#45738: a back end took the name and the parameters of an activation, and computed plain silu.
"""

import pytest
import torch

from nvfp4_suite.contract.case import Inputs, torch_dtype
from nvfp4_suite.contract.gpus import CATALOG, PORTABLE
from nvfp4_suite.contract.kernel import ACTIVATIONS
from nvfp4_suite.kernels import hopper
from nvfp4_suite.kernels.decode import NAME as DECODE
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.registry import KERNELS
from nvfp4_suite.kernels.variants import DEFAULT

from ..engine import on_gpu
from . import passing
from .edges import shape_of
from .gate_up import REGISTERED, W4A16
from .subject import run_kernel

SWIGLUOAI = [  # gate, up, (up + 1) * gate * sigmoid(1.702 * gate) with gate at most 7 and up between -7 and 7
    (10.0, 10.0, 55.9996),
    (10.0, -10.0, -41.9997),
    (-10.0, 10.0, -3.246e-06),
    (1.0, -1.0, 0.0),
    (7.0, 0.0, 6.99995),
]
OF_THREE = {"gelu_tanh": 2.996363, "gelu": 2.995950, "silu": 2.857722}  # f(3)
# f(3) times these is rounded to three numbers, none of them within 3e-5 of another rounding: 16 bits are 1e-3 apart.
TELLING_UPS = {"bf16": [253.0, -253.0], "fp16": [3.0, -5.0, 25.0]}

# Which launch activates is no matter of the kernel, as the last test says. On a GPU all of them are asked.
RUNS = [(DEFAULT, "bf16"), (DECODE, "fp16"), *on_gpu([(kernel, dtype) for kernel in W4A16 for dtype in TELLING_UPS])]
every_run = pytest.mark.parametrize(("kernel", "dtype"), RUNS)


def _activated(kernel: str, dtype: str, gates: list[float], ups: list[float], device: str, **options) -> torch.Tensor:
    """[T] the output of one expert whose sums change nothing."""
    shape = shape_of("known sums", kernel)
    x = passing.tokens(gates, ups, shape.hidden, torch_dtype(dtype), device)
    ids = torch.zeros(len(gates), 1, dtype=torch.int32)
    banks = passing.banks(1, shape.hidden, shape.intermediate, device)
    out = run_kernel(KERNELS[kernel], Inputs(x, banks, torch.ones(len(gates), 1), ids), device, **options)
    assert torch.equal(out, out[:, :1].expand_as(out))
    return out[:, 0]


def _rounded(values: list[float], dtype: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).to(torch_dtype(dtype))


@pytest.mark.fault("vllm-project/vllm#45738")
@every_run
def test_swigluoai_clamps_as_published(kernel: str, dtype: str, device):
    """Silu gives 99.995, -99.995, -0.00454, -0.731 and 0; a gate clamped from below too, -3.75e-4 for the third."""
    gates, ups, wanted = zip(*SWIGLUOAI, strict=True)
    options = {"activation": "swigluoai", "activation_alpha": 1.702, "activation_limit": 7.0}
    out = _activated(kernel, dtype, list(gates), list(ups), device, **options)
    assert out.tolist() == _rounded(list(wanted), dtype).tolist()


@pytest.mark.parametrize("dtype", TELLING_UPS)
def test_near_relatives_round_to_different_numbers(dtype: str):
    for up in TELLING_UPS[dtype]:
        assert len({_rounded([f * up], dtype).item() for f in OF_THREE.values()}) == len(OF_THREE)
        for f in OF_THREE.values():
            assert len({_rounded([f * up * (1 + error)], dtype).item() for error in (-3e-5, 0.0, 3e-5)}) == 1


@pytest.mark.fault("vllm-project/vllm#45738")
@pytest.mark.parametrize("name", OF_THREE)
@every_run
def test_near_relatives_are_told_apart(kernel: str, dtype: str, name: str, device):
    ups = TELLING_UPS[dtype]
    out = _activated(kernel, dtype, [3.0] * len(ups), ups, device, activation=name)
    assert out.tolist() == _rounded([OF_THREE[name] * up for up in ups], dtype).tolist()


@pytest.mark.fault("vllm-project/vllm#45738")
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("kernel", ["auto", *REGISTERED])
def test_every_plan_activates_by_one_launch_of_that_name(kernel: str, name: str):
    """The kernel for sm_90 by its first GEMM."""
    shape = shape_of("known sums", kernel, experts=8, top_k=2)
    plans = [
        plan_layer(gpu, shape, 5, dtype=dtype, activation=name, kernel=kernel)
        for gpu in (*CATALOG, PORTABLE)
        for dtype in TELLING_UPS
    ]
    launches = {plan.launch("activation") or plan.launch("gate_up") for plan in plans}
    assert {launch.constexpr("ACTIVATION") for launch in launches} == {name}
    kernels = {"pointwise.gated_activation"} | ({hopper.GATE_UP} if kernel in hopper.NAMES else set())
    assert {launch.kernel for launch in launches} == kernels
    assert len(launches) == len(TELLING_UPS) * len(kernels)
