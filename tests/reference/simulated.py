"""A kernel as it may be: its sums on a simulated tensor core, its activation in sloppy fp32."""

import math

import torch

from nvfp4_suite.reference.activations import Activation


def tensor_core_sums(
    x: torch.Tensor, weight: torch.Tensor, order: torch.Tensor, step: int, smallest: int
) -> torch.Tensor:
    """x [R, K] @ weight.T [K, N], `step` products at a time in the given order of K, aligned and cut off.

    A product is aligned by the exponents of its factors; `smallest` is the least that an activation may have.
    """
    total = x.new_zeros(len(x), len(weight))
    for ks in order.split(step):
        addends = torch.cat([(x[:, None, ks] * weight[None, :, ks]), total[..., None]], dim=2)
        aligned_by = exponent(x).clamp(min=smallest)[:, None, ks] + exponent(weight)[None, :, ks]
        aligned_by = torch.cat([aligned_by, exponent(total)[..., None]], dim=2)
        unit = torch.where(addends == 0, -1000, aligned_by).amax(2, keepdim=True) - 23
        total = cut_to_fp32(torch.ldexp(torch.ldexp(addends, -unit).trunc(), unit).sum(2))
    return total


def exponent(x: torch.Tensor) -> torch.Tensor:
    return x.frexp().exponent - 1


def cut_to_fp32(x: torch.Tensor) -> torch.Tensor:
    unit = exponent(x) - 23
    return torch.ldexp(torch.ldexp(x, -unit).trunc(), unit)


def orders(k: int) -> dict[str, torch.Tensor]:
    forward = torch.arange(k)
    shuffled = torch.randperm(k, generator=torch.Generator().manual_seed(7))
    return {"forward": forward, "even_then_odd": torch.cat([forward[::2], forward[1::2]]), "shuffled": shuffled}


def sloppy_f(activation: Activation, gate: torch.Tensor) -> torch.Tensor:
    """f in fp32 with each primitive as far off as it may be, in the direction that adds up."""
    x = gate.float()
    if activation.name == "gelu":
        erf = nudged(torch.erf(x * 0.5**0.5), 2)
        return (x * (0.5 * (1 + erf))).double()
    z = activation.exponent(x)  # fp32 throughout: x is
    e = nudged(torch.exp2((-z * math.log2(math.e)).double()).float(), 2)
    return (x * nudged(1 / (1 + e), -2)).double()


def nudged(x: torch.Tensor, ulps: int) -> torch.Tensor:
    for _ in range(abs(ulps)):
        x = torch.nextafter(x, torch.full_like(x, math.copysign(math.inf, ulps)))
    return x
