"""Case: one expert layer with its routing, inputs and options. One line of a table, one id, one repro command.

Every number in a case's inputs comes from integer hashing of the case's id, so that it is the same on every machine
and under every version of torch.
"""

import hashlib
import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from .banks import ExpertBanks
from .kernel import ACTIVATIONS, DTYPES, FORMATS
from .shapes import LayerShape

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

ROUTINGS = ("random", "hot", "few", "twice", "dropped")
INPUTS = ("orderfree", "random")
TIERS = ("smoke", "ci", "all")
PIECE = 2**22  # bytes of a bank that are drawn at once


@dataclass(frozen=True)
class Case:
    """`tokens` through one layer of `shape`.

    `routing`: "random" (distinct experts), "hot" (every token names expert 0), "few" (two experts serve all, the others
    stay empty), "twice" (a token names one expert twice), "dropped" (some ids are -1, E or beyond).
    `inputs`: "orderfree" (sums exact in any order, see reference.orderfree) or "random". `format`: what the GEMMs
    multiply, one of kernel.FORMATS. `atomics`: the sum over top_k is exact also where every addition rounds to `dtype`;
    top_k is then at least 3, because with two routes addition commutes.
    """

    shape: LayerShape
    tokens: int
    routing: str = "random"
    inputs: str = "orderfree"
    dtype: str = "bf16"
    activation: str = "silu"
    activation_alpha: float = 1.702
    activation_limit: float = 7.0
    weight_on_input: bool = False
    format: str = "w4a16"
    atomics: bool = False
    tier: str = "smoke"

    def __post_init__(self) -> None:
        allowed = {"routing": ROUTINGS, "inputs": INPUTS, "dtype": DTYPES, "activation": ACTIVATIONS}
        allowed |= {"format": FORMATS, "tier": TIERS}
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name} is {getattr(self, name)!r}, but should be one of {', '.join(values)}")
        if self.tokens < 0:
            raise ValueError(f"tokens is {self.tokens}, but should be at least 0")
        if self.routing == "twice" and self.shape.top_k < 2:
            raise ValueError(f"routing is 'twice', but needs a top_k of at least 2, not {self.shape.top_k}")
        if self.atomics and (self.shape.top_k < 3 or self.inputs != "orderfree"):
            found = f"inputs {self.inputs!r} and a top_k of {self.shape.top_k}"
            raise ValueError(f"atomics is True with {found}, but needs inputs 'orderfree' and a top_k of at least 3")

    @property
    def id(self) -> str:
        """Names the case: "orderfree-e4k2h48i80-t5-random-silu-bf16", options that differ from the default behind."""
        s = self.shape
        parts = [self.inputs, f"e{s.experts}k{s.top_k}h{s.hidden}i{s.intermediate}", f"t{self.tokens}", self.routing]
        parts += [self.activation, self.dtype]
        for name, letter in (("activation_alpha", "alpha"), ("activation_limit", "limit")):
            if getattr(self, name) != _DEFAULTS[name]:
                parts.append(f"{letter}{float(getattr(self, name))}")
        if self.weight_on_input:
            parts.append("weight_on_input")
        if self.format != _DEFAULTS["format"]:
            parts.append(self.format)
        if self.atomics:
            parts.append("atomics")
        return "-".join(parts)

    @property
    def options(self) -> dict:
        """The keyword arguments of Kernel.run and reference.moe.expert_layer."""
        names = ("activation", "activation_alpha", "activation_limit", "weight_on_input")
        return {name: getattr(self, name) for name in names}


_DEFAULTS = {f.name: f.default for f in fields(Case)}


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a layer is called with: `hidden_states` [T, H] of 16 bits; `topk_weights` f32, `topk_ids` i32 [T, top_k]."""

    hidden_states: "Tensor"
    banks: ExpertBanks
    topk_weights: "Tensor"
    topk_ids: "Tensor"

    def to(self, device) -> "Inputs":
        return Inputs(
            self.hidden_states.to(device), self.banks.to(device), self.topk_weights.to(device), self.topk_ids.to(device)
        )


def torch_dtype(name: str) -> "torch.dtype":
    """The torch dtype of "bf16" or "fp16"."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}[name]


def hashed(key: str, *shape: int) -> "Tensor":
    """Integers in [0, 2^32) as int64 of `shape`: element i is a hash of `key` and i. On torch's default device.

    The mixer is the 32-bit "lowbias32" of Chris Wellons' hash-prospector (multipliers 0x7feb352d and 0x846ca68b).
    """
    return _hashes(key, 0, math.prod(shape)).reshape(shape)


def _hashes(key: str, first: int, count: int) -> "Tensor":
    """`count` of the integers of `key`, flat, from element `first` on."""
    import torch

    digest = hashlib.sha256(key.encode()).digest()
    start, stride = int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little") | 1
    x = (torch.arange(first, first + count, dtype=torch.int64) * stride + start) & 0xFFFFFFFF
    for shift, multiplier in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> shift)) * multiplier) & 0xFFFFFFFF
    return x ^ (x >> 16)


def _hashed_bytes(key: str, byte_of: "Callable[[Tensor], Tensor]", *shape: int) -> "Tensor":
    """uint8 of `shape`: what `byte_of` makes of `hashed`, a piece at a time, for the integers take far more memory."""
    import torch

    flat = torch.empty(math.prod(shape), dtype=torch.uint8)
    for first in range(0, len(flat), PIECE):
        some = flat[first : first + PIECE]
        some.copy_(byte_of(_hashes(key, first, len(some))))
    return flat.reshape(shape)


def topk_ids(case: Case) -> "Tensor":
    """The case's routing: int32 [T, top_k]."""
    import torch

    experts, top_k = case.shape.experts, case.shape.top_k
    if case.routing == "few":
        experts = min(2, experts)
    order = hashed(f"{case.id}/ids", case.tokens, experts).argsort(dim=1, stable=True).to(torch.int32)
    ids = order.repeat(1, -(-top_k // experts))[:, :top_k].clone()  # distinct as long as there are experts enough
    if case.routing == "hot":
        ids = torch.where(ids == 0, ids[:, :1], ids)  # the others stay distinct
        ids[:, 0] = 0
    elif case.routing == "twice":
        ids[:, -1] = ids[:, 0]
    elif case.routing == "dropped":
        bad = torch.tensor([-1, experts, -7, experts + 3], dtype=torch.int32)
        pick = hashed(f"{case.id}/dropped", case.tokens, top_k)
        ids = torch.where(pick % 3 == 0, bad[(pick >> 8) % 4], ids)
        ids[-1:, -1] = -1  # also where the hash drops none
    return ids.contiguous()


def random_inputs(case: Case) -> Inputs:
    """Inputs like a real layer's: near-normal activations, all 256 weight bytes, block scales over three binades.

    Global scales differ per row and keep gate and up rows near 1, so that no output is made of zeros or of infinities.
    Input scales, for w4a4 alone, differ per expert; the largest is about right for what they quantize.

    They are made on torch's default device and are the same on each: within `torch.device("cuda")`, banks of gigabytes
    take a moment.
    """
    s = case.shape
    bell = (hashed(f"{case.id}/x", case.tokens, s.hidden, 4) >> 16).sum(-1) - 2 * 0xFFFF  # standard deviation 37,837
    hidden_states = (bell.double() / 37_837).to(torch_dtype(case.dtype))
    gate_up = _random_matrix(f"{case.id}/gate_up", s.experts, 2 * s.intermediate, s.hidden)
    down = _random_matrix(f"{case.id}/down", s.experts, s.hidden, s.intermediate)
    scales = _random_input_scales(case) if case.format == "w4a4" else ()
    weights = (hashed(f"{case.id}/weights", case.tokens, s.top_k) >> 8).float() / 2**24 + 2**-6
    return Inputs(hidden_states, ExpertBanks(*gate_up, *down, *scales), weights, topk_ids(case))


def _random_input_scales(case: Case) -> "list[Tensor]":
    """The two GEMMs' input scales, f32 [E]: an amax between 2 and 4 over 448 * 6."""
    jitter = 1 + (hashed(f"{case.id}/input_scales", 2, case.shape.experts) >> 9).float() / 2**23
    return [row.clone() for row in jitter * 2 / 2688]  # each with an aligned start of its own


def _random_matrix(key: str, experts: int, rows: int, k: int) -> "tuple[Tensor, Tensor, Tensor]":
    """packed, scale and global of one bank; the globals make a row's dot product with unit-normal x about 1."""
    import torch

    packed = _hashed_bytes(f"{key}/packed", lambda h: h & 0xFF, experts, rows, k // 2)
    scale = _hashed_bytes(f"{key}/scale", lambda h: 0x30 + h % 24, experts, rows, k // 16).view(torch.float8_e4m3fn)
    jitter = 1 + (hashed(f"{key}/global", experts, rows) >> 9).float() / 2**23  # [1, 2): every mantissa bit in use
    return packed, scale, jitter * 2.0 ** -round(3 + math.log2(k) / 2)
