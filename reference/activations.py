"""The gated activations of an expert: f(gate) * up, in float64."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..contract.kernel import ACTIVATIONS
from .rounding import Rounding


@dataclass(frozen=True)
class Activation:
    """A gated activation, f(gate) * up. `alpha` and `limit` serve swigluoai alone.

    Raises ValueError for an unknown name, or if `alpha` or `limit` is not above 0.
    """

    name: str
    alpha: float = 1.702
    limit: float = 7.0

    def __post_init__(self) -> None:
        if self.name not in ACTIVATIONS:
            raise ValueError(f"activation is {self.name!r}, but should be one of {', '.join(ACTIVATIONS)}")
        for name in ("alpha", "limit"):
            if not getattr(self, name) > 0:
                raise ValueError(f"activation_{name} is {getattr(self, name)}, but should be above 0")

    @classmethod
    def of_options(cls, name: str, alpha: float, limit: float, rounding: Rounding) -> "Activation":
        """The activation as a kernel gets it: `alpha` and `limit` are fp32 numbers where `rounding` rounds."""
        return cls(name, *rounding.fp32(torch.tensor([alpha, limit], dtype=torch.float64)).tolist())

    def clamp(self, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        """What f and the product see: swigluoai clamps gate from above only, up from both sides; a NaN stays."""
        if self.name != "swigluoai":
            return gate, up
        return gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)

    def f(self, gate: Tensor) -> Tensor:
        """f of the clamped `gate`, in float64; from about -1024 down it is -0.0, as x / (1 + inf) is.

        silu and swigluoai: x * sigmoid(alpha * x), alpha = 1 for silu (swigluoai as published with gpt-oss). gelu:
        x * erfc(-x / sqrt 2) / 2. gelu_tanh (Hendrycks and Gimpel, arXiv:1606.08415): x / 2 * (1 + tanh(y)), which is
        x * sigmoid(2 y), y = sqrt(2 / pi) * (x + 0.044715 x^3).
        """
        if self.name == "gelu":
            return gate * (0.5 * torch.special.erfc(-gate * 0.5**0.5))
        return gate / (1 + torch.exp(-self.exponent(gate)))

    def exponent(self, gate: Tensor) -> Tensor:
        """z in f(gate) = gate * sigmoid(z), for every activation but gelu."""
        if self.name == "gelu_tanh":
            return 2 * (2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
        return gate * self.alpha if self.name == "swigluoai" else gate
