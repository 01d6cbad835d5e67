"""What f of a gated activation may be where it is evaluated in fp32, by formulas that differ between kernels."""

import torch
from torch import Tensor

from .accumulation import FP32_SMALLEST_NORMAL
from .activations import Activation
from .ranges import Range, hull

# Where f has its only minimum; it falls before and rises behind. Of silu this is -(1 + W(1/e)), W being Lambert's.
_LOWEST_AT = {"silu": -1.2784645427610738, "gelu": -0.7517915246935646, "gelu_tanh": -0.7524614220710163}


def enclose_f(gate: Range, activation: Activation) -> Range:
    """f of the clamped gate, with the error of evaluating it in fp32."""
    lowest_at = _lowest_at(activation)
    ends = [activation.f(gate.lower), activation.f(gate.upper)]
    bottom = activation.f(torch.full_like(gate.lower, lowest_at))
    straddles = (gate.lower < lowest_at) & (gate.upper > lowest_at)
    exact = hull([*ends, torch.where(straddles, bottom, ends[0])], certain=gate.certain)
    size = torch.maximum(exact.lower.abs(), exact.upper.abs())
    error = _error(gate, size, activation)
    return exact.widened(torch.where(size.isfinite(), error + FP32_SMALLEST_NORMAL, 0.0))


def _error(gate: Range, size: Tensor, activation: Activation) -> Tensor:
    """How far off f of a gate may be evaluated; `size` is its largest magnitude.

    x * sigmoid(z), as x / (1 + exp(-z)): z has a relative error of at most 2^-21 (gelu_tanh: seven
    roundings and constants; silu none), the argument z * log2(e) of ex2 one more of 2^-23, and both count |z|-fold in
    exp(-z) and no more in the result. ex2.approx and the division may each be 2 ulps off, two more operations half an
    ulp: below (|z| + 2) * 2^-20 for z < 0, below 2 * 2^-20 for z > 0. Where exp overflows or a result is subnormal, the
    sigmoid is less than 2^-126 off. x * (1 + erf(x / sqrt 2)) / 2: erf is 2 ulps off, its argument two roundings,
    1 + erf one more: below 2^-22 of x, and the product's rounding. So does x * (1 + tanh(z / 2)) / 2, another way to
    evaluate gelu_tanh, where 1 + tanh cancels.

    On an H200, Triton's own exp, erf and div_rn stay below a quarter of this for every 16-bit gate
    (tests/hardware/test_activations.py).
    """
    x = torch.maximum(gate.lower.abs(), gate.upper.abs())
    if activation.name == "gelu":
        return (x + size) * 2.0**-22
    cancelled = x * 2.0**-22 if activation.name == "gelu_tanh" else 0.0
    return cancelled + size * (2 - activation.exponent(gate.lower).clamp(max=0)) * 2.0**-20 + x * FP32_SMALLEST_NORMAL


def _lowest_at(activation: Activation) -> float:
    if activation.name == "swigluoai":
        return _LOWEST_AT["silu"] / activation.alpha
    return _LOWEST_AT[activation.name]
