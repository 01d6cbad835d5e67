"""The error of whole layers against float64 without any rounding, and the error that rounding to bf16 predicts.

The measure is ||out - true|| / ||true||, Frobenius norms over all tokens, true being the layer in float64 on the
dequantized weights. FlashML-org/FreeToken#723 states 0.0038 to 0.0039 for its kernels at these shapes and tokens.

Prediction: a number rounded to bf16 is off by an error of mean 0 and variance ulp^2 / 12, independent of all others,
ulp being 2^-7 of the power of two below it. The layer rounds gate, up, f(gate) * up, each route and the output; each
such error spreads by the derivatives of what follows. This leaves no constant free.

A token's squared error scatters around its prediction p, with a variance of at most 2 p^2 (a quadratic form of errors
whose kurtosis is no larger than a normal's), so none may be DEVIATIONS standard deviations off. Tokens are independent:
over many, the sums agree far better, to within DEVIATIONS standard deviations as the tokens themselves show them.
fp32's own errors are a thousandth of bf16's and count for a millionth of the square.
"""

import pytest
import torch
from torch import Tensor

from nvfp4_suite.contract.case import Case, Inputs
from nvfp4_suite.kernels.registry import KERNELS
from nvfp4_suite.kernels.variants import DEFAULT
from nvfp4_suite.reference import moe
from nvfp4_suite.reference.accumulation import DEVIATIONS
from nvfp4_suite.reference.activations import Activation
from nvfp4_suite.reference.rounding import rounding_form

from ..engine import INTERPRETED
from ..held import held
from ..moe.subject import inputs_on, run_kernel
from .layer import SHAPES, first_tokens, weights_of

SEED = ("Qwen3.6-35B-A3B", "Qwen3.5-122B-A10B", "Qwen3.8-Flash", "Gemma-4-26B-A4B", "MiniMax-M2.5", "GLM-4.7")
NAMES = [name for name in SHAPES if INTERPRETED or name in SEED]
TOKENS = (40,) if INTERPRETED else (128, 1024)


def rounding_variance(x: Tensor) -> Tensor:
    """Of the error of `x` rounded to bf16, which has 8 significant bits."""
    ulp = torch.where(x == 0, 0.0, torch.exp2(torch.frexp(x).exponent.double() - 8))
    return ulp.square() / 12


@held(maxsize=1)
def _layer(name: str, device: str) -> tuple[Case, Inputs, Tensor, Tensor]:
    case = Case(SHAPES[name], max(TOKENS), inputs="random")
    inputs = inputs_on(case, device)
    return case, inputs, *true_and_variance(inputs)


def true_and_variance(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The unrounded silu layer, float64 [T, H], and the predicted variance of each of its elements."""
    weights, form = weights_of(inputs), rounding_form(None, torch.bfloat16)
    x, on_route = inputs.hidden_states.double(), inputs.topk_weights.double()
    routes = x.new_zeros(*inputs.topk_ids.shape, x.shape[1])
    variance = torch.zeros_like(routes)
    for expert, tokens, slots in moe.routes_by_expert(inputs.topk_ids, inputs.banks.experts):
        gate_up, down, w = weights.gate_up[expert], weights.down[expert], on_route[tokens, slots]
        gate, up = moe.gate_up(x[tokens], gate_up, weights.gate_up_alpha[expert], form)
        alpha = weights.down_alpha[expert]
        routes[tokens, slots] = moe.down(moe.activate(gate, up, Activation("silu"), form), down, alpha, w, form)
        spread = _variance_behind_activation(gate, up) @ down.square().T
        variance[tokens, slots] = spread * (alpha * w[:, None]).square()
    total = moe.combine(routes, form)
    return total, (variance + rounding_variance(routes)).sum(1) + rounding_variance(total)


def _variance_behind_activation(gate: Tensor, up: Tensor) -> Tensor:
    """Of f(gate) * up, all three rounded."""
    gate = gate.detach().requires_grad_()
    f = Activation("silu").f(gate)
    (slope,) = torch.autograd.grad(f.sum(), gate)
    gate, f = gate.detach(), f.detach()
    of_gate = (slope * up).square() * rounding_variance(gate)
    return of_gate + f.square() * rounding_variance(up) + rounding_variance(f * up)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.together(f"{name}, error")) for name in NAMES])
def test_the_error_is_what_rounding_predicts(name: str, tokens: int, device, record_property):
    case, inputs, true, variance = _layer(name, device)
    actual = run_kernel(KERNELS[DEFAULT], first_tokens(inputs, tokens), device, **case.options)
    true, predicted = true[:tokens], variance[:tokens].sum(1)
    found = (actual.to(true.device).double() - true).square().sum(1)
    error, foretold = ((some.sum().sqrt() / true.norm()).item() for some in (found, predicted))
    record_property("relative_error", f"{name} | {tokens} | {error:.5f} | {foretold:.5f}")
    excess, allowed = found - predicted, DEVIATIONS * 2**0.5 * predicted
    wrong = (excess.abs() > allowed).nonzero()[:, 0].tolist()
    assert not wrong, f"tokens {wrong[:8]} are {(found / predicted).max():.3g} times as far off as predicted"
    total, scatter = excess.sum().item(), excess.square().sum().sqrt().item()
    assert abs(total) <= DEVIATIONS * scatter, f"{error:.5f} is {total / scatter:.1f} deviations from {foretold:.5f}"
