"""f of every 16-bit gate, as this GPU evaluates it in fp32, lies in what reference.activation_bounds allows."""

import pytest
import torch
import triton
import triton.language as tl

from nvfp4_suite.contract.case import torch_dtype
from nvfp4_suite.contract.kernel import ACTIVATIONS
from nvfp4_suite.kernels.device.pointwise import activate
from nvfp4_suite.reference.activation_bounds import enclose_f
from nvfp4_suite.reference.activations import Activation
from nvfp4_suite.reference.ranges import Range


@triton.jit(do_not_specialize=["alpha", "limit"])
def _f(gate, out, alpha, limit, up, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = activate(tl.load(gate + at).to(tl.float32), up, alpha, limit, ACTIVATION)
    tl.store(out + at, value)


@pytest.mark.fault("vllm-project/vllm#45738")
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_f_of_every_gate_is_enclosed(name, dtype, device, record_property):
    gate = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch_dtype(dtype))
    gate = torch.where(gate.isfinite(), gate, 0.0)
    activation, up = Activation(name), 0.0 if name == "swigluoai" else 1.0  # swigluoai multiplies by up + 1
    out = torch.full(gate.shape, torch.nan, device=device)
    alpha, limit = torch.tensor([activation.alpha, activation.limit]).tolist()
    _f[(64,)](gate.to(device), out, alpha, limit, up, ACTIVATION=name, BLOCK=1024, enable_fp_fusion=False)
    clamped, _ = activation.clamp(gate.double(), torch.zeros(()))
    enclosed, exact, value = enclose_f(Range.point(clamped), activation), activation.f(clamped), out.cpu().double()
    error = (value - exact).abs() / (enclosed.upper - exact)
    record_property("error_to_bound", f"median {error.median():.1e}, largest {error.max():.1e}")
    assert error.max() <= 1, f"worst at gate {gate[error.argmax()].item()}"
