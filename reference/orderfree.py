"""The proof that inputs have one right output in bits, whatever the order of summation and the formula of f.

A sum of multiples of a grid g is exact in fp32, in every partial sum and every order, while the magnitudes add up to
less than 2^24 g. The proof asks for less, because matrix units may align their addends less finely: 2^22 g for the sums
of W4A16, 2^20 g for those of W4A4, which native FP4 instructions form. Additions in d, as atomics make them, are exact
below 2^8 g (bf16) or 2^11 g (fp16), the significant bits of d. In a GEMM's sum, g is the largest power of two that
divides every product.

What is no sum rounds in one known place (scales, routing weights, f(gate) * up), element by element, and is only asked
to stay inside the range of its format. So is quantization, whose block scales must not saturate, because that would
hide faults (they may underflow: recipes differ there). Gates must lie where every formula of f gives exactly 0 or the
gate itself.

`prove` follows the rounding points of the case's format, see rounding.py; draws/ draws inputs that pass.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..contract.case import Case, Inputs
from . import formats, moe
from .activations import Activation
from .rounding import Rounding, rounding_form

# Of a sum's magnitudes, in units of its grid.
GEMM_LIMITS = {"w4a16": 2.0**22, "w4a4": 2.0**20}
FP32_LIMIT = 2.0**22
ATOMIC_LIMITS = {torch.bfloat16: 2.0**8, torch.float16: 2.0**11}

FP32_NORMAL = 2.0**-126  # below it a GPU may flush to zero
INPUT_SCALES = (2.0**-100, 2.0**100)  # far enough inside fp32 for all that a quantizer computes on its way


class OrderDependent(ValueError):
    """The inputs do not pass the proof: some result may depend on the order of summation or on the formula."""


@dataclass(frozen=True)
class Condition:
    """What must hold in every element of `ok` [R, N]; `numbers` [R, N] explain where it does not."""

    problem: str
    ok: Tensor
    numbers: dict[str, Tensor]
    axis: str = "column"  # what N counts


def prove(inputs: Inputs, case: Case) -> None:
    """Passes if the output of `inputs` under `case`'s format and options has one right answer in bits; see the module.

    With `case.atomics`, that includes a sum over the slots whose every addition is made in d, in any order. Raises
    OrderDependent with the first condition that fails: stage, place and numbers; ValueError if the case's format needs
    input scales and the banks have none.
    """
    x, on_route = inputs.hidden_states.double(), inputs.topk_weights.double()
    form = rounding_form(case.format, inputs.hidden_states.dtype)
    weights = moe.Weights.of_banks(inputs.banks, form)
    routes = x.new_zeros(*inputs.topk_ids.shape, inputs.banks.hidden)
    for expert, tokens, slots in moe.routes_by_expert(inputs.topk_ids, inputs.banks.experts):
        places = [f"expert {expert}, token {t}, slot {s}" for t, s in zip(tokens.tolist(), slots.tolist(), strict=True)]
        route = _Route(case, inputs.hidden_states.dtype, form, weights, expert, places)
        routes[tokens, slots] = route.proved(x[tokens], on_route[tokens, slots])
    require(added(routes, inputs.hidden_states.dtype, case.atomics), [f"token {token}" for token in range(len(x))])


@dataclass(frozen=True)
class _Route:
    """The way of one expert's rows through the layer, with the conditions at every stage."""

    case: Case
    dtype: torch.dtype
    form: Rounding
    weights: moe.Weights
    expert: int
    places: Sequence[str]

    def proved(self, x: Tensor, w: Tensor | None) -> Tensor:
        """What the rows `x` [R, H] under the routing weights `w` [R] add: [R, H]."""
        self.require(in_range("input", x, self.dtype))
        self.require(normal("routing weight", w[:, None]))
        if self.case.weight_on_input:
            self.require(in_range("weighted input", x * w[:, None], self.dtype))
            x, w = moe.weigh_input(x, w, self.form), None
        x = self.entered("gate_up input", x, self.weights.gate_up_input_scale)
        weight, alpha = self.weights.gate_up[self.expert], self.weights.gate_up_alpha[self.expert]
        self.require(gemm("gate_up", x, weight, alpha, self.case.format, self.between))
        gate, up = moe.gate_up(x, weight, alpha, self.form)
        options = (self.case.activation, self.case.activation_alpha, self.case.activation_limit)
        activation = Activation.of_options(*options, self.form)
        self.require(saturated(gate, up, activation))
        h = moe.activate(gate, up, activation, self.form)
        self.require(in_range("activation", h, self.between))
        h = self.entered("down input", h, self.weights.down_input_scale)
        weight, alpha = self.weights.down[self.expert], self.weights.down_alpha[self.expert]
        self.require(gemm("down", h, weight, alpha, self.case.format, self.dtype, w))
        return moe.down(h, weight, alpha, w, self.form)

    @property
    def between(self) -> torch.dtype:
        """What gate_up and the activation hand on."""
        return self.dtype if self.form.recipe is None else torch.float32

    def entered(self, stage: str, x: Tensor, input_scale: Tensor | None) -> Tensor:
        if self.form.recipe is not None:
            self.require(quantized(stage, x, input_scale, self.form.recipe))
        return moe.enter(x, input_scale, self.form)

    def require(self, conditions: Iterable[Condition]) -> None:
        require(conditions, self.places)


def require(conditions: Iterable[Condition], places: Sequence[str]) -> None:
    """Raises OrderDependent for the first condition that fails, at its first element; `places` names the R rows."""
    for condition in conditions:
        if not condition.ok.all():
            row, column = (~condition.ok).nonzero()[0].tolist()
            values = ", ".join(f"{name} = {tensor[row, column].item():g}" for name, tensor in condition.numbers.items())
            place = f"{places[row]}, {condition.axis} {column}"
            raise OrderDependent(f"{condition.problem} at {place}: {values}")


def passing(conditions: Iterable[Condition]) -> Tensor:
    """bool [N]: the columns in which all conditions hold."""
    return torch.stack([condition.ok.all(0) for condition in conditions]).all(0)


def gemm(
    stage: str,
    x: Tensor,
    weight: Tensor,
    alpha: Tensor,
    format_: str,
    dtype: torch.dtype,
    w: Tensor | None = None,
) -> Iterator[Condition]:
    """The sums of the entered `x` [R, K] and `weight` [N, K] are exact; times alpha [N] and w [R] they fit `dtype`.

    `format_` says which matrix units may form them.
    """
    yield from exact(f"{stage} sum", x.abs() @ weight.abs().T, product_grid(x, weight), GEMM_LIMITS[format_])
    yield from normal(f"{stage} alpha", alpha[None].expand(len(x), -1))
    scaled = (x @ weight.T) * alpha
    yield from normal(f"{stage} sum * alpha", scaled)
    yield from in_range(f"{stage} result", scaled if w is None else scaled * w[:, None], dtype)


def added(routes: Tensor, dtype: torch.dtype, atomics: bool) -> Iterator[Condition]:
    """The sums over the slots of `routes` [T, top_k, H] are exact in fp32, with `atomics` in `dtype`, and in range."""
    total, grid = routes.abs().sum(1), lowest_bit(routes).amin(1)
    yield from exact("top_k sum", total, grid, FP32_LIMIT)
    if atomics:
        yield from exact(f"top_k sum in {dtype}", total, grid, ATOMIC_LIMITS[dtype])
    yield from in_range("output", routes.sum(1), dtype)


def quantized(stage: str, x: Tensor, input_scale: Tensor, recipe: str) -> Iterator[Condition]:
    """The blocks of `x` [R, K] are finite and have scales that do not saturate; `input_scale` is 0-dim."""
    amax = x.unflatten(-1, (-1, formats.BLOCK)).abs().amax(-1)
    p = input_scale.double().expand_as(amax)
    yield Condition(f"{stage}: not finite", amax.isfinite(), {"amax": amax}, "block")
    low, high = INPUT_SCALES
    yield Condition(f"{stage}: input scale beyond {low:g} to {high:g}", (p >= low) & (p <= high), {"scale": p}, "block")
    wanted = amax / 6 / p
    yield Condition(f"{stage}: block scale above 448", wanted <= 448, {"scale": wanted}, "block")


def saturated(gate: Tensor, up: Tensor, activation: Activation) -> Iterator[Condition]:
    """f(gate) is exactly 0 or the gate, in fp32 and by every formula; the limits of sigmoid and erf were measured."""
    gate, _ = activation.clamp(gate, up)
    alpha = activation.alpha if activation.name == "swigluoai" else 1.0
    lowest, highest = (-16.0, 10.0) if activation.name in ("gelu", "gelu_tanh") else (-1024.0, 40.0)
    z = alpha * gate
    problem = f"{activation.name} gate: alpha * gate should be 0, at least {highest:g} or at most {lowest:g}"
    ok = (z == 0) | (z >= highest) | (z <= lowest)
    yield Condition(problem, ok, {"gate": gate, "alpha": torch.full_like(gate, alpha)})


def exact(stage: str, total: Tensor, grid: Tensor, limit: float) -> Iterator[Condition]:
    """Sums of multiples of `grid` whose magnitudes add up to `total` are exact, `limit` grids being the most."""
    yield Condition(f"{stage}: grid below fp32's normal range", grid >= FP32_NORMAL, {"g": grid})
    most = limit * grid
    problem = f"{stage}: magnitudes too large for their grid"
    yield Condition(problem, total < most, {"g": grid, "sum": total, "limit": most})


def normal(stage: str, value: Tensor) -> Iterator[Condition]:
    ok = (value == 0) | ~(value.abs() < FP32_NORMAL)  # a NaN is another problem
    yield Condition(f"{stage}: below fp32's normal range", ok, {"value": value})


def in_range(stage: str, value: Tensor, dtype: torch.dtype) -> Iterator[Condition]:
    yield from normal(stage, value)
    yield Condition(f"{stage}: not finite in {dtype}", value.float().to(dtype).isfinite(), {"value": value})


def product_grid(x: Tensor, weight: Tensor) -> Tensor:
    """[R, N]: the largest power of two that divides every product of x [R, K] and weight [N, K]; inf if all are 0."""
    grid, of_weight = x.new_empty(len(x), len(weight)), lowest_bit(weight)
    for row, of_x in zip(grid, lowest_bit(x), strict=True):  # few rows: a step per k would take a GPU thousands
        torch.amin(of_x * of_weight, dim=1, out=row)
    return grid


def lowest_bit(x: Tensor) -> Tensor:
    """For each float64 of `x` the largest power of two that it is a multiple of; inf for 0, NaN if it is not finite.

    What is no normal float64 is taken for 0: no product of this suite's formats is so small.
    """
    bits = x.contiguous().view(torch.int64)
    fraction = (bits & (2**52 - 1)) | 2**52
    zeros = ((fraction & -fraction).double().view(torch.int64) >> 52) - 1023  # trailing ones of the fraction
    exponent = (bits >> 52) & 0x7FF
    lowest = ((exponent - 52 + zeros) << 52).view(torch.float64)
    return torch.where(exponent == 0, torch.inf, torch.where(exponent < 0x7FF, lowest, torch.nan))
