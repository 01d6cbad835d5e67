"""Draws order-free inputs of single stages, where one sum alone has to fit, so that all can be richer than in a layer.

Every number comes from hashing `key`. All inputs pass the conditions by which orderfree.prove judges the same stage.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ...contract.case import hashed, torch_dtype
from .. import formats, moe
from ..activations import Activation
from ..formats import BLOCK
from ..orderfree import ATOMIC_LIMITS, FP32_LIMIT, Condition, added, gemm, in_range, passing, require, saturated
from ..rounding import rounding_form
from .rows import Rows, first_passing, mantissas, weight_rows

SCALE_BINADES = 4  # of the weights of a row, at most
ROW_BINADES = 12  # of the rows of x
MAX_INPUT_SCALE = 2.0**-9


@dataclass(frozen=True, eq=False)
class Gemm:
    """One expert's GEMM of `format`, with results in `dtype`: rows x weights [N, K], times alpha and routing weights.

    `x` is [R, K] of `dtype` in W4A16. In W4A4 it is None, and `x_packed` u8 [R, K/2] and `x_scale` u8 [R, K/16] are
    what a quantizer made of it with `input_scale`, 0-dim. `weights` are Rows of one expert; `topk_weights` f32 [R].
    """

    format: str
    dtype: torch.dtype
    x: Tensor | None
    x_packed: Tensor | None
    x_scale: Tensor | None
    input_scale: Tensor | None
    weights: Rows
    topk_weights: Tensor

    def operands(self) -> tuple[Tensor, Tensor, Tensor]:
        """What moe's GEMM stages take, in float64: the entered rows, the weights and alpha."""
        x = formats.dequantize_blocks(self.x_packed, self.x_scale) if self.x is None else self.x.double()
        return x, self.weights.weights()[0], self.weights.alpha(self.input_scale)[0]

    def conditions(self) -> Iterator[Condition]:
        """Those of prove, for results with and without the routing weights."""
        x, weight, alpha = self.operands()
        yield from gemm("gemm", x, weight, alpha, self.format, self.dtype)
        yield from in_range("weighted result", (x @ weight.T) * alpha * self.topk_weights.double()[:, None], self.dtype)


def draw_gemm(key: str, rows: int, n: int, k: int, dtype: str, format_: str) -> Gemm:
    """A GEMM of `rows` x `n` sums over `k`: every fourth row of x is dense, or of few bits, or sparse, or one-hot.

    Weight rows have all codes, scales of up to four binades, and globals of full mantissas, as their sums allow.
    """
    drawn = _dense_rows(key, rows, k, dtype) if format_ == "w4a16" else _quantized_rows(key, rows, k)
    topk_weights = mantissas(f"{key}/weights", 23, rows) / 2

    def with_weights(weights: Rows) -> Gemm:
        return Gemm(format_, torch_dtype(dtype), *drawn, weights, topk_weights)

    size = 2.0**-6 if format_ == "w4a16" else 2.0**-6 / MAX_INPUT_SCALE
    weights = first_passing(
        lambda attempt: weight_rows(key, 1, n, k, size, attempt, SCALE_BINADES),
        lambda trial: passing(with_weights(trial).conditions())[None],
    )
    found = with_weights(weights)
    require(found.conditions(), _places("row", rows))
    return found


def _dense_rows(key: str, rows: int, k: int, dtype: str) -> tuple[Tensor, None, None, None]:
    """x [R, K] of W4A16: integers of all bits of d, or 2 or 3 times a power of two; each row has its own exponent."""
    bits = {"bf16": 8, "fp16": 11}[dtype]
    h = hashed(f"{key}/x", rows, k)
    full = (h >> 8) % 2**bits
    few = 2 + (h >> 8) % 2 << (h >> 16) % (bits - 1)
    few_bits = torch.arange(rows)[:, None] % 4 == 1
    values = torch.where(_used(key, rows, k), torch.where(few_bits, few, full), 0) * torch.where(h & 1 == 0, 1, -1)
    exponent = hashed(f"{key}/exponent", rows, 1) % ROW_BINADES - bits
    return torch.ldexp(values.double(), exponent - ROW_BINADES // 2).to(torch_dtype(dtype)), None, None, None


def _quantized_rows(key: str, rows: int, k: int) -> tuple[None, Tensor, Tensor, Tensor]:
    """Rows of W4A4: all codes; the scales of a row lie in one or two binades, those of all rows span e4m3's."""
    h = hashed(f"{key}/x", rows, k)
    codes = torch.where(_used(key, rows, k), h >> 8 & 15, 0).to(torch.uint8)
    binade = hashed(f"{key}/exponent", rows, 1) % 14
    of_block = hashed(f"{key}/x_scale", rows, k // BLOCK)
    scale = 8 * (binade + (of_block >> 8) % 2) + of_block % 8
    input_scale = MAX_INPUT_SCALE * mantissas(f"{key}/input_scale", 23) / 2
    return None, formats.pack(codes), scale.clamp(min=1).to(torch.uint8), input_scale


def _used(key: str, rows: int, k: int) -> Tensor:
    """bool [R, K]: two dense rows, one of a quarter, one with a single value; a single value moves from row to row."""
    h, kind = hashed(f"{key}/used", rows, k), torch.arange(rows)[:, None] % 4
    last = torch.arange(k) >= k - BLOCK
    single = torch.arange(k) == (rows + 5 * torch.arange(rows)[:, None]) % k
    return torch.where(kind == 3, single, (kind < 2) | (h % 4 == 0) | last & (h % 2 == 0))


def draw_activation(key: str, rows: int, columns: int, dtype: str, activation: Activation) -> Tensor:
    """gate and up [R, 2 I] of `dtype`, as W4A16 hands them on: any bit patterns that saturate and whose result fits.

    Where they do not, the gate is 0 or the up 1.
    """
    form, d = rounding_form("w4a16", torch_dtype(dtype)), torch_dtype(dtype)
    patterns = hashed(f"{key}/patterns", 2, rows, columns) >> 8 & 0xFFFF
    gate, up = torch.where(patterns >= 2**15, patterns - 2**16, patterns).to(torch.int16).view(d).double()

    def conditions() -> Iterator[Condition]:
        yield from in_range("up", up, d)
        yield from in_range("activation", moe.activate(gate, up, activation, form), d)

    gate = torch.where(_hold([*in_range("gate", gate, d), *saturated(gate, up, activation)]), gate, 0.0)
    up = torch.where(_hold(conditions()), up, 1.0)
    require([*saturated(gate, up, activation), *conditions()], _places("row", rows))
    return torch.cat([gate, up], dim=1).to(d)


def draw_routes(key: str, tokens: int, top_k: int, hidden: int, dtype: str, atomics: bool = False) -> Tensor:
    """Routes [T, top_k, H] of `dtype` to be summed over the slots, in fp32 or, with `atomics`, in `dtype`.

    They have all bits of d and as many binades as the sum can bear; atomics leave neither.
    """
    d = torch_dtype(dtype)
    h = hashed(f"{key}/routes", tokens, top_k, hidden)
    bits = round(math.log2(ATOMIC_LIMITS[d]))
    most = (2**bits - 1) // top_k if atomics else 2**bits - 1
    spread = 0 if atomics else round(math.log2(FP32_LIMIT)) - bits - math.ceil(math.log2(top_k))
    values = (1 + (h >> 1) % most << (h >> 16) % (spread + 1)) * torch.where(h & 1 == 0, 1, -1)
    lowest, binades = {"bf16": (-60, 100), "fp16": (-24, 17)}[dtype]
    exponent = lowest + hashed(f"{key}/exponent", tokens, 1, hidden) % binades
    routes = torch.ldexp(values.double(), exponent)
    require(added(routes, d, atomics), _places("token", tokens))
    return routes.to(d)


def _hold(conditions: Iterable[Condition]) -> Tensor:
    return torch.stack([condition.ok for condition in conditions]).all(0)


def _places(name: str, count: int) -> list[str]:
    return [f"{name} {i}" for i in range(count)]
