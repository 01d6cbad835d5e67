"""GEMMs among poison: whoever reads beside a row of K elements, in x or in the weights, gets a NaN for it."""

from dataclasses import dataclass

import torch

from .linear.layer import Layer, order_free

RAGGED_K = (16, 48, 80, 144, 2064)  # one scale, whole and broken words of scales and tiles of four, many steps
E4M3_NAN = 0x7F
BEHIND = 4096  # bytes


@dataclass(frozen=True, eq=False)
class AmongPoison:
    """An order-free x [M, K] and weights [N, K], of which every second row is NaN, as is what lies behind the last one.

    `expected` is the one right answer of the other rows alone, out[0::2, 0::2] of an output [M, N].
    """

    layer: Layer
    expected: torch.Tensor


def among_poison(m: int, n: int, k: int, dtype: str, device: str) -> AmongPoison:
    """All on `device`, except for `expected`."""
    layer = Layer(*(tensor.clone() for tensor in vars(order_free(m, n, k, dtype)).values()))
    expected = layer.outputs(layer.x.double() @ layer.weights().T)[0::2, 0::2]
    layer.x[1::2] = torch.nan
    layer.scale.view(torch.uint8)[1::2] = E4M3_NAN
    poison = (torch.nan, 0x77, E4M3_NAN, torch.nan)
    tensors = zip(vars(layer).values(), poison, strict=True)
    return AmongPoison(Layer(*(_followed_by(value, tensor.to(device)) for tensor, value in tensors)), expected)


def _followed_by(value: float, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` at the start of a larger one that is full of `value`."""
    plain = tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor
    whole = plain.new_full((plain.numel() + BEHIND // plain.element_size(),), value)
    whole[: plain.numel()] = plain.flatten()
    return whole[: plain.numel()].view(plain.shape).view(tensor.dtype)
