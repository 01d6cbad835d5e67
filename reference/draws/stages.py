"""Draws order-free inputs of single stages, where one sum alone has to fit, so that all can be richer than in a layer.

Every number comes from hashing `key`. All inputs pass the conditions by which orderfree.prove judges the same stage.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...contract.case import hashed, torch_dtype
from .. import formats, moe
from ..activations import Activation
from ..formats import BLOCK
from ..orderfree import ATOMIC_LIMITS, FP32_LIMIT, Condition, added, gemm, in_range, passing, require, saturated
from ..rounding import Rounding, rounding_form
from .rows import Rows, first_passing, mantissas, weight_rows

SCALE_BINADES = 4  # of the weights of a row, at most
ROW_BINADES = 12  # of the rows of x
ROW_BITS = 17  # of an integer in x and of the number of values in its row, together
MAX_INPUT_SCALE = 2.0**-9
NEIGHBOURS = 4  # of a routing weight, on either side, that are tried with it


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
    Routing weights are in [1/2, 1), and aimed so that the order of the products shows in the result, see _aimed.
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
    found = _aimed(with_weights(weights))
    require(found.conditions(), _places("row", rows))
    return found


def _dense_rows(key: str, rows: int, k: int, dtype: str) -> tuple[Tensor, None, None, None]:
    """x [R, K] of W4A16: integers of up to all bits of d, or 2 or 3 times a power of two; rows differ in exponent.

    The more values a row has, the fewer bits they have, so that its sums leave room for dense weights.
    """
    used = _used(key, rows, k)
    _, bits_of_count = torch.frexp(used.sum(1, keepdim=True).double())
    bits = (ROW_BITS - bits_of_count.long()).clamp(2, {"bf16": 8, "fp16": 11}[dtype])
    h = hashed(f"{key}/x", rows, k)
    full = (h >> 8) % (1 << bits)
    few = 2 + (h >> 8) % 2 << (h >> 16) % (bits - 1)
    few_bits = torch.arange(rows)[:, None] % 4 == 1
    values = torch.where(used, torch.where(few_bits, few, full), 0) * torch.where(h & 1 == 0, 1, -1)
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


def _aimed(gemm: Gemm) -> Gemm:
    """`gemm` with routing weights under which ((sum * alpha) * w) differs from the same products in other orders.

    Orders differ in the last bit of fp32. Rounding to d hides that, but for results at the middle between two numbers
    of d. So every result asks for the weight that puts it there, and each row takes, of all these weights and their
    neighbours in fp32, the first that shows the most orders in the result that asked for it.
    """
    form = rounding_form(gemm.format, gemm.dtype)
    x, weight, alpha = gemm.operands()
    sums, alpha, drawn = (x @ weight.T)[..., None], alpha[:, None], gemm.topk_weights.double()[:, None, None]
    scaled = form.fp32(sums * alpha)
    tried = _neighbours(_to_next_middle(scaled, drawn, gemm.dtype))
    right = form.narrow(form.fp32(scaled * tried))
    shown = sum((form.narrow(other) != right).long() for other in _other_orders(gemm, sums, alpha, tried, form))
    shown = shown.where((tried >= 1 / 2) & (tried < 1), 0).flatten(1)
    most, first = shown.max(1)
    aimed = torch.where(most > 0, tried.flatten(1).gather(1, first[:, None])[:, 0], drawn.flatten())
    return replace(gemm, topk_weights=aimed.float())


def _to_next_middle(scaled: Tensor, w: Tensor, dtype: torch.dtype) -> Tensor:
    """The weights with which `scaled` comes out at the first middle between two numbers of `dtype` from scaled * w."""
    near = (scaled * w).abs().to(dtype)
    above = (near.view(torch.int16) + 1).view(dtype)
    return (near.double() + above.double()) / 2 / scaled.abs()


def _neighbours(w: Tensor) -> Tensor:
    """[..., 9], float64: `w` [..., 1] in fp32, and the numbers before and behind it."""
    bits = w.float().view(torch.int32) + torch.arange(-NEIGHBOURS, NEIGHBOURS + 1, dtype=torch.int32)
    return bits.view(torch.float32).double()


def _other_orders(gemm: Gemm, sums: Tensor, alpha: Tensor, w: Tensor, form: Rounding) -> Iterator[Tensor]:
    """(sum * w) * alpha, sum * (alpha * w), and in W4A4 ((sum * input scale) * global) * w, in fp32."""
    yield form.fp32(form.fp32(sums * w) * alpha)
    yield form.fp32(sums * form.fp32(alpha * w))
    if gemm.input_scale is not None:
        of_weight = gemm.weights.global_scale[0].double()[:, None]
        yield form.fp32(form.fp32(form.fp32(sums * gemm.input_scale.double()) * of_weight) * w)


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
