"""Where an expert layer rounds: one Rounding per declared form. Rounding is to nearest even, d is hidden_states' dtype.

    w4a16   input     only with weight on input: (x * w) in fp32, -> d
            gate_up   sum in fp32, * global in fp32, -> d
            activate  f(gate) in fp32, * up in fp32, -> d
            down      ((sum in fp32) * global in fp32) * w in fp32, -> d per route (no * w with weight on input)
            combine   sum over the slots in slot order in fp32, starting at +0, -> d
    w4a4    input     (x * w) as above, then -> NVFP4 with the layer's input scale
            gate_up   sum in fp32, * alpha in fp32, alpha = input scale * global in fp32
            activate  f(gate) in fp32, * up in fp32, then -> NVFP4 with the layer's second input scale
            down      as above, with its alpha in place of the global
            combine   as above

"w4a16_atomic" and "w4a4_atomic" round to d after every addition of combine, as additions by atomics in d do. They stand
for the slot order; a kernel's own order is right only where no addition rounds.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rounding:
    """`fp32` stands after every operation, the others behind a stage, where fp32 values are stored or handed on.

    `between`: behind gate_up and the activation; `narrow`: a route's contribution, the weighted input and the output;
    `add`: an addition over the slots. `recipe` quantizes what enters the two GEMMs; None leaves it as it is. `dtype` is
    d; with `atomic`, the routes may be added in any order.
    """

    fp32: Callable[[Tensor], Tensor]
    between: Callable[[Tensor], Tensor]
    narrow: Callable[[Tensor], Tensor]
    add: Callable[[Tensor], Tensor]
    dtype: torch.dtype
    recipe: str | None = None
    atomic: bool = False


@dataclass(frozen=True)
class _Form:
    format: str
    atomic: bool = False


FORMS = {
    "w4a16": _Form("w4a16"),
    "w4a16_atomic": _Form("w4a16", atomic=True),
    "w4a4": _Form("w4a4"),
    "w4a4_atomic": _Form("w4a4", atomic=True),
}
RECIPE = "vllm"  # of the forms of format w4a4, unless a caller names another


def rounding_form(name: str | None, dtype: torch.dtype, recipe: str | None = None) -> Rounding:
    """The form `name` of FORMS for activations of `dtype`; None rounds nowhere, but quantizes if `recipe` says how.

    `recipe` is one of quantize.RECIPES; the forms of format w4a4 take RECIPE unless it is given. Raises ValueError
    for an unknown name or a recipe where the format has none, TypeError if the form rounds and `dtype` is not bf16 or
    fp16.
    """
    if name is None:
        return Rounding(unrounded, unrounded, unrounded, unrounded, dtype, recipe)
    if name not in FORMS:
        raise ValueError(f"rounding is {name!r}, but should be one of {', '.join(map(repr, (None, *FORMS)))}")
    form = FORMS[name]
    if dtype not in (torch.bfloat16, torch.float16):
        raise TypeError(f"hidden_states is {dtype}, but should be bfloat16 or float16 with rounding {name!r}")
    if recipe and form.format == "w4a16":
        raise ValueError(f"input_quantization is {recipe!r}, but should be None with rounding {name!r}")

    def narrow(x: Tensor) -> Tensor:
        return x.float().to(dtype).double()

    quantized = form.format == "w4a4"
    return Rounding(
        fp32=to_fp32,
        between=unrounded if quantized else narrow,
        narrow=narrow,
        add=narrow if form.atomic else to_fp32,
        dtype=dtype,
        recipe=(recipe or RECIPE) if quantized else None,
        atomic=form.atomic,
    )


def to_fp32(x: Tensor) -> Tensor:
    """Float64 `x` rounded to the nearest fp32, as float64."""
    return x.float().double()


def unrounded(x: Tensor) -> Tensor:
    return x
