"""One expert layer, stage by stage: gate_up, activate, down, combine.

Every stage takes and returns float64 tensors. Without rounding they hold the layer's true value (to float64 accuracy).
With rounding "w4a16" they hold fp32 and d values, d being the dtype of the activations, rounded to nearest even:

    input     only with weight on input: (x * w) in fp32, -> d
    gate_up   sum in fp32, * global in fp32, -> d
    activate  f(gate) in fp32, * up in fp32, -> d
    down      ((sum in fp32) * global in fp32) * w in fp32, -> d per route (no * w with weight on input)
    combine   sum over the slots in slot order in fp32, starting at +0, -> d

"Sum in fp32" stands for the exact sum rounded once. It is formed in float64, which holds it exactly for order-free
inputs; for others it may be off by K * 2^-53 of the sum of magnitudes before the rounding.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..contract.banks import ExpertBanks
from ..contract.kernel import ACTIVATIONS
from . import formats

ROUNDINGS = (None, "w4a16")


@dataclass(frozen=True)
class Rounding:
    """Where a layer rounds: `fp32` after every operation, `narrow` (fp32 values -> d) behind every stage."""

    fp32: Callable[[Tensor], Tensor]
    narrow: Callable[[Tensor], Tensor]


def rounding_form(name: str | None, dtype: torch.dtype) -> Rounding:
    """The rounding named `name` for activations of `dtype`; None rounds nowhere.

    Raises ValueError for an unknown name, TypeError if `dtype` is not bf16 or fp16 and the form rounds.
    """
    if name not in ROUNDINGS:
        raise ValueError(f"rounding is {name!r}, but should be one of {', '.join(map(repr, ROUNDINGS))}")
    if name is None:
        return Rounding(fp32=lambda t: t, narrow=lambda t: t)
    if dtype not in (torch.bfloat16, torch.float16):
        raise TypeError(f"hidden_states is {dtype}, but should be bfloat16 or float16 with rounding {name!r}")
    return Rounding(fp32=to_fp32, narrow=lambda t: t.float().to(dtype).double())


def to_fp32(x: Tensor) -> Tensor:
    """Float64 `x` rounded to the nearest fp32, as float64."""
    return x.float().double()


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


def gate_up(x: Tensor, weight: Tensor, global_scale: Tensor, rounding: Rounding) -> tuple[Tensor, Tensor]:
    """gate and up [R, I] of the rows `x` [R, H]; `weight` [2I, H] lacks its `global_scale` [2I]."""
    result = rounding.narrow(rounding.fp32(rounding.fp32(_sums(x, weight)) * global_scale))
    return result.chunk(2, dim=1)


def activate(gate: Tensor, up: Tensor, activation: Activation, rounding: Rounding) -> Tensor:
    """f(gate) * up, or f(gate) * (up + 1) for swigluoai. f is evaluated in float64 and rounded once."""
    gate, up = activation.clamp(gate, up)
    if activation.name == "swigluoai":
        up = rounding.fp32(up + 1)
    return rounding.narrow(rounding.fp32(rounding.fp32(activation.f(gate)) * up))


def down(h: Tensor, weight: Tensor, global_scale: Tensor, route_weight: Tensor | None, rounding: Rounding) -> Tensor:
    """What each route adds, [R, H], from `h` [R, I]; `weight` [H, I] lacks its `global_scale` [H].

    `route_weight` [R] is None where it was on the input.
    """
    result = rounding.fp32(rounding.fp32(_sums(h, weight)) * global_scale)
    if route_weight is not None:
        result = rounding.fp32(result * route_weight[:, None])
    return rounding.narrow(result)


def combine(routes: Tensor, rounding: Rounding) -> Tensor:
    """[T, H]: the sum of `routes` [T, top_k, H] over the slots, in slot order."""
    total = torch.zeros_like(routes[:, 0])
    for slot in range(routes.shape[1]):
        total = rounding.fp32(total + routes[:, slot])
    return rounding.narrow(total)


def weigh_input(x: Tensor, route_weight: Tensor, rounding: Rounding) -> Tensor:
    """x * w for the rows `x` [R, H] and their weights [R]."""
    return rounding.narrow(rounding.fp32(x * route_weight[:, None]))


def routes_by_expert(topk_ids: Tensor, experts: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(expert, its tokens, their slots) for every expert that some route names; other ids name none."""
    for expert in range(experts):
        tokens, slots = (topk_ids == expert).nonzero(as_tuple=True)
        if len(tokens):
            yield expert, tokens, slots


def expert_layer(
    hidden_states: Tensor, banks: ExpertBanks, topk_weights: Tensor, topk_ids: Tensor, **options
) -> Tensor:
    """`dense_layer` on the decoded `banks`, with the same options: the layer's output as float64 [T, H]."""
    gate_up_blocks = formats.dequantize_blocks(banks.gate_up_packed, banks.gate_up_scale)
    down_blocks = formats.dequantize_blocks(banks.down_packed, banks.down_scale)
    scales = {"gate_up_global": banks.gate_up_global, "down_global": banks.down_global}
    return dense_layer(hidden_states, gate_up_blocks, down_blocks, topk_weights, topk_ids, **scales, **options)


def dense_layer(
    hidden_states: Tensor,
    gate_up_f64: Tensor,
    down_f64: Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    *,
    gate_up_global: Tensor | None = None,
    down_global: Tensor | None = None,
    activation: str = "silu",
    activation_alpha: float = 1.702,
    activation_limit: float = 7.0,
    weight_on_input: bool = False,
    input_quantization: None = None,
    rounding: str | None = None,
) -> Tensor:
    """The output of one expert layer as float64 [T, H], from weights `gate_up_f64` [E, 2I, H] and `down_f64` [E, H, I].

    `hidden_states` [T, H] are floats (bf16 or fp16 if `rounding`), `topk_weights` f32 and `topk_ids` integers
    [T, top_k]. The globals, f32 [E, 2I] and [E, H], multiply the rows of the weights behind the sum; None stands for 1.
    `rounding`: None or "w4a16", see the module; with it alpha and limit are rounded to fp32, as a kernel gets them.
    A route whose id is no expert contributes exact zeros. A NaN stays in its token's row.

    Raises TypeError for a wrong dtype; ValueError for a wrong shape, an unknown `activation` or `rounding`, and for
    any `input_quantization`: W4A4 does not exist yet.
    """
    if input_quantization is not None:
        raise ValueError(f"input_quantization is {input_quantization!r}, but should be None: W4A4 does not exist yet")
    if gate_up_global is None:
        gate_up_global = torch.ones(gate_up_f64.shape[:2], device=gate_up_f64.device)
    if down_global is None:
        down_global = torch.ones(down_f64.shape[:2], device=down_f64.device)
    _check(hidden_states, gate_up_f64, down_f64, topk_weights, topk_ids, gate_up_global, down_global)
    form = rounding_form(rounding, hidden_states.dtype)
    gated = Activation.of_options(activation, activation_alpha, activation_limit, form)

    x, weights = hidden_states.double(), topk_weights.double()
    routes = x.new_zeros(*topk_ids.shape, x.shape[1])
    for expert, tokens, slots in routes_by_expert(topk_ids, len(gate_up_f64)):
        rows, w = x[tokens], weights[tokens, slots]
        if weight_on_input:
            rows, w = weigh_input(rows, w, form), None
        gate, up = gate_up(rows, gate_up_f64[expert], gate_up_global[expert].double(), form)
        h = activate(gate, up, gated, form)
        routes[tokens, slots] = down(h, down_f64[expert], down_global[expert].double(), w, form)
    return combine(routes, form)


def _sums(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.T + 0.0  # + 0.0: a sum that starts at +0 is never -0


_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

# Each argument's dtypes and dimensions, in the order of _check.
_ARGUMENTS = {
    "hidden_states": (_FLOATS, ("tokens", "hidden")),
    "gate_up_f64": ((torch.float64,), ("experts", "2 * intermediate", "hidden")),
    "down_f64": ((torch.float64,), ("experts", "hidden", "intermediate")),
    "topk_weights": ((torch.float32,), ("tokens", "top_k")),
    "topk_ids": ((torch.int32, torch.int64), ("tokens", "top_k")),
    "gate_up_global": ((torch.float32,), ("experts", "2 * intermediate")),
    "down_global": ((torch.float32,), ("experts", "hidden")),
}


def _check(*arguments: Tensor) -> None:
    """Raises TypeError or ValueError for the first argument that does not fit the ones before it."""
    sizes = {}
    for (name, (dtypes, dimensions)), tensor in zip(_ARGUMENTS.items(), arguments, strict=True):
        shape, layout = list(tensor.shape), f"[{', '.join(dimensions)}]"
        if tensor.dtype not in dtypes:
            raise TypeError(f"{name} is {tensor.dtype}, but should be {' or '.join(map(str, dtypes))}")
        if len(shape) != len(dimensions):
            raise ValueError(f"{name} has shape {shape}, but should be {layout}")
        wanted = [sizes.setdefault(dimension, size) for dimension, size in zip(dimensions, shape, strict=True)]
        if shape != wanted:
            raise ValueError(f"{name} has shape {shape}, but should be {wanted} = {layout}")
        if "2 * intermediate" in sizes:
            sizes["intermediate"] = sizes["2 * intermediate"] / 2
