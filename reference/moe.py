"""One expert layer, stage by stage: enter, gate_up, activate, down, combine; rounding.py says where each rounds.

Every stage takes and returns float64 tensors, so that a test can hand a kernel's own intermediate to the next one.
Without rounding they hold the layer's true value (to float64 accuracy), with rounding the fp32, d or NVFP4 values of
the form, d being the dtype of hidden_states.

"Sum in fp32" stands for the exact sum rounded once. It is formed in float64, which holds it exactly for order-free
inputs; for others it may be off by K * 2^-53 of the sum of magnitudes before the rounding.

W4A4 scales are static: each GEMM's input has one global scale for the layer, the largest of its experts' input scales.
A stage multiplies its sums by alpha = input scale * weight global; without quantization alpha is the weight global.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from ..contract.banks import ExpertBanks
from . import formats, quantize
from .activations import Activation
from .rounding import Rounding, rounding_form


def weigh_input(x: Tensor, route_weight: Tensor, rounding: Rounding) -> Tensor:
    """x * w for the rows `x` [R, H] and their weights [R]."""
    return rounding.narrow(rounding.fp32(x * route_weight[:, None]))


def enter(x: Tensor, input_scale: Tensor | None, rounding: Rounding) -> Tensor:
    """What a GEMM multiplies in place of the rows `x` [R, K]: their NVFP4 values, which lack `input_scale`, or `x`.

    The values are e2m1 * block scale; a block whose scale is NaN is NaN. K is a multiple of 16. Quantizers read fp32,
    so that x is rounded to it first where it is not fp32 already.
    """
    if rounding.recipe is None:
        return x
    global_scale = stored(input_scale, rounding.recipe)
    return formats.dequantize_blocks(*quantize.quantize(x.float(), global_scale, rounding.recipe))


def stored(input_scale: Tensor, recipe: str) -> Tensor:
    """The fp32 multiplier `input_scale` in the form in which `recipe`'s producer stores a global scale."""
    if recipe in ("modelopt", "torchao"):
        return input_scale
    if recipe == "transformer_engine":  # the amax
        return input_scale * 2688
    return 1 / input_scale


def gate_up(x: Tensor, weight: Tensor, alpha: Tensor, rounding: Rounding) -> tuple[Tensor, Tensor]:
    """gate and up [R, I] of the entered rows `x` [R, H]; `weight` [2I, H] lacks its `alpha` [2I]."""
    result = rounding.between(rounding.fp32(rounding.fp32(_sums(x, weight)) * alpha))
    return result.chunk(2, dim=1)


def activate(gate: Tensor, up: Tensor, activation: Activation, rounding: Rounding) -> Tensor:
    """f(gate) * up, or f(gate) * (up + 1) for swigluoai. f is evaluated in float64 and rounded once."""
    gate, up = activation.clamp(gate, up)
    if activation.name == "swigluoai":
        up = rounding.fp32(up + 1)
    return rounding.between(rounding.fp32(rounding.fp32(activation.f(gate)) * up))


def down(h: Tensor, weight: Tensor, alpha: Tensor, route_weight: Tensor | None, rounding: Rounding) -> Tensor:
    """What each route adds, [R, H], from the entered `h` [R, I]; `weight` [H, I] lacks its `alpha` [H].

    `route_weight` [R] is None where it was on the input.
    """
    result = rounding.fp32(rounding.fp32(_sums(h, weight)) * alpha)
    if route_weight is not None:
        result = rounding.fp32(result * route_weight[:, None])
    return rounding.narrow(result)


def combine(routes: Tensor, rounding: Rounding) -> Tensor:
    """[T, H]: the sum of `routes` [T, top_k, H] over the slots, in slot order."""
    total = torch.zeros_like(routes[:, 0])
    for slot in range(routes.shape[1]):
        total = rounding.add(total + routes[:, slot])
    return rounding.narrow(total)


def routes_by_expert(topk_ids: Tensor, experts: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(expert, its tokens, their slots) for every expert that some route names; other ids name none.

    The host waits for a GPU once, not for each expert.
    """
    ids, order = topk_ids.flatten().long().sort(stable=True)
    tokens, slots = order // topk_ids.shape[1], order % topk_ids.shape[1]
    ends = torch.searchsorted(ids, torch.arange(experts + 1, device=ids.device)).tolist()
    for expert, (start, end) in enumerate(pairwise(ends)):
        if start < end:
            yield expert, tokens[start:end], slots[start:end]


@dataclass(frozen=True, eq=False)
class DecodedExperts:
    """The weights of `packed` u8 [E, N, K/2] and `scale` e4m3 [E, N, K/16] as float64 [N, K], decoded when asked for.

    A published layer whole takes up to 77 GB in float64; one expert of it takes 300 MB.
    """

    packed: Tensor
    scale: Tensor

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, expert: int) -> Tensor:
        return formats.dequantize_blocks(self.packed[expert], self.scale[expert])


@dataclass(frozen=True, eq=False)
class Weights:
    """One layer's weights as the stages take them.

    `gate_up` [E, 2I, H] and `down` [E, H, I] lack their alphas, [E, 2I] and [E, H]; all are float64. The input scales
    are those of the two GEMMs, 0-dim float32, None where nothing is quantized.
    """

    gate_up: Tensor | DecodedExperts
    gate_up_alpha: Tensor
    gate_up_input_scale: Tensor | None
    down: Tensor | DecodedExperts
    down_alpha: Tensor
    down_input_scale: Tensor | None

    @classmethod
    def of_banks(cls, banks: ExpertBanks, rounding: Rounding) -> "Weights":
        """Raises ValueError if `rounding` quantizes and the banks carry no input scales."""
        return cls(
            DecodedExperts(banks.gate_up_packed, banks.gate_up_scale),
            *_alpha("gate_up", banks.gate_up_global, banks.gate_up_input_scale, rounding),
            DecodedExperts(banks.down_packed, banks.down_scale),
            *_alpha("down", banks.down_global, banks.down_input_scale, rounding),
        )

    def of_expert(self, expert: int) -> "Weights":
        """Those of one expert, decoded: `gate_up` [2I, H] and its alpha [2I], `down` [H, I] and its alpha [H]."""
        names = ("gate_up", "gate_up_alpha", "down", "down_alpha")
        return replace(self, **{name: getattr(self, name)[expert] for name in names})


def _alpha(
    name: str, global_scale: Tensor, input_scale: Tensor | None, rounding: Rounding
) -> tuple[Tensor, Tensor | None]:
    """(alpha, the layer's input scale) of the GEMM `name`, from its `global_scale` [E, N] and `input_scale` [E]."""
    if rounding.recipe is None:
        return global_scale.double(), None
    if input_scale is None:
        raise ValueError(f"{name}_input_scale is None, but should be given: W4A4 quantizes with it")
    largest = input_scale.max()
    if not (input_scale > 0).all() or not largest.isfinite():
        raise ValueError(f"{name}_input_scale holds {input_scale.tolist()}, but should be finite and above 0")
    return rounding.fp32(largest.double() * global_scale.double()), largest


def expert_layer(
    hidden_states: Tensor, banks: ExpertBanks, topk_weights: Tensor, topk_ids: Tensor, **options
) -> Tensor:
    """`dense_layer` on the decoded `banks`, with the same options: the layer's output as float64 [T, H]."""
    names = ("gate_up_global", "down_global", "gate_up_input_scale", "down_input_scale")
    scales = {name: getattr(banks, name) for name in names}
    gate_up_blocks = formats.dequantize_blocks(banks.gate_up_packed, banks.gate_up_scale)
    down_blocks = formats.dequantize_blocks(banks.down_packed, banks.down_scale)
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
    gate_up_input_scale: Tensor | None = None,
    down_input_scale: Tensor | None = None,
    activation: str = "silu",
    activation_alpha: float = 1.702,
    activation_limit: float = 7.0,
    weight_on_input: bool = False,
    input_quantization: str | None = None,
    rounding: str | None = None,
) -> Tensor:
    """The output of one expert layer as float64 [T, H], from weights `gate_up_f64` [E, 2I, H] and `down_f64` [E, H, I].

    `hidden_states` [T, H] are floats (bf16 or fp16 if `rounding`), `topk_weights` f32 and `topk_ids` integers
    [T, top_k]. The globals, f32 [E, 2I] and [E, H], multiply the rows of the weights behind the sum; None stands for 1.
    `rounding`: None or one of rounding.FORMS; with it alpha and limit are rounded to fp32, as a kernel gets them.
    `input_quantization`: the recipe of quantize.RECIPES by which what enters the GEMMs becomes NVFP4, with the static
    input scales, f32 [E]; None stands for the form's own: none, and "vllm" where the form is one of W4A4.
    A route whose id is no expert contributes exact zeros. A NaN stays in its token's row.

    Raises TypeError for a wrong dtype; ValueError for a wrong shape, an unknown `activation`, `rounding` or
    `input_quantization`, and for input scales that are missing where they are needed, or not finite and above 0.
    """
    if gate_up_global is None:
        gate_up_global = torch.ones(gate_up_f64.shape[:2], device=gate_up_f64.device)
    if down_global is None:
        down_global = torch.ones(down_f64.shape[:2], device=down_f64.device)
    _check(
        hidden_states=hidden_states,
        gate_up_f64=gate_up_f64,
        down_f64=down_f64,
        topk_weights=topk_weights,
        topk_ids=topk_ids,
        gate_up_global=gate_up_global,
        down_global=down_global,
        gate_up_input_scale=gate_up_input_scale,
        down_input_scale=down_input_scale,
    )
    form = rounding_form(rounding, hidden_states.dtype, input_quantization)
    weights = Weights(
        gate_up_f64,
        *_alpha("gate_up", gate_up_global, gate_up_input_scale, form),
        down_f64,
        *_alpha("down", down_global, down_input_scale, form),
    )
    gated = Activation.of_options(activation, activation_alpha, activation_limit, form)
    return combine(layer_routes(hidden_states, weights, topk_weights, topk_ids, gated, weight_on_input, form), form)


def layer_routes(
    hidden_states: Tensor,
    weights: Weights,
    topk_weights: Tensor,
    topk_ids: Tensor,
    activation: Activation,
    weight_on_input: bool,
    rounding: Rounding,
) -> Tensor:
    """What every route contributes, float64 [T, top_k, H]; zeros where its id is no expert."""
    x, on_route = hidden_states.double(), topk_weights.double()
    routes = x.new_zeros(*topk_ids.shape, x.shape[1])
    for expert, tokens, slots in routes_by_expert(topk_ids, len(weights.gate_up)):
        rows, w, one = x[tokens], on_route[tokens, slots], weights.of_expert(expert)
        routes[tokens, slots] = expert_routes(rows, w, one, activation, weight_on_input, rounding)
    return routes


def expert_routes(
    rows: Tensor, w: Tensor | None, one: Weights, activation: Activation, weight_on_input: bool, rounding: Rounding
) -> Tensor:
    """What the routes of one expert contribute, [R, H], from its `rows` [R, H], their weights `w` [R] and its own."""
    if weight_on_input:
        rows, w = weigh_input(rows, w, rounding), None
    rows = enter(rows, one.gate_up_input_scale, rounding)
    gate, up = gate_up(rows, one.gate_up, one.gate_up_alpha, rounding)
    h = enter(activate(gate, up, activation, rounding), one.down_input_scale, rounding)
    return down(h, one.down, one.down_alpha, w, rounding)


def _sums(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.T + 0.0  # + 0.0: a sum that starts at +0 is never -0


_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

# Each argument's dtypes and dimensions, in the order in which they are checked.
_ARGUMENTS = {
    "hidden_states": (_FLOATS, ("tokens", "hidden")),
    "gate_up_f64": ((torch.float64,), ("experts", "2 * intermediate", "hidden")),
    "down_f64": ((torch.float64,), ("experts", "hidden", "intermediate")),
    "topk_weights": ((torch.float32,), ("tokens", "top_k")),
    "topk_ids": ((torch.int32, torch.int64), ("tokens", "top_k")),
    "gate_up_global": ((torch.float32,), ("experts", "2 * intermediate")),
    "down_global": ((torch.float32,), ("experts", "hidden")),
    "gate_up_input_scale": ((torch.float32,), ("experts",)),
    "down_input_scale": ((torch.float32,), ("experts",)),
}


def _check(**arguments: Tensor | None) -> None:
    """Raises TypeError or ValueError for the first of _ARGUMENTS that does not fit the ones before it."""
    sizes = {}
    for name, (dtypes, dimensions) in _ARGUMENTS.items():
        if (tensor := arguments[name]) is None:
            continue
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
