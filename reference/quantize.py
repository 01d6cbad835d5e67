"""NVFP4 quantization as five producers do it, each in fp32 and in its own order of operations.

On ordinary data the recipes give the same bytes; they part at ties, in subnormal and underflowing block scales, at
zeros and at NaN. `Recipe` has their steps, and the functions of a producer cite the source they follow.

| recipe             | global scale      | zero block | scale underflows        | sign of zero | NaN is code |
|--------------------|-------------------|------------|-------------------------|--------------|-------------|
| modelopt           | amax / 2688       | 0x38 (1)   | 0x01                    | lost         | 7           |
| compressed_tensors | 2688 / amax       | 0x20 (1/8) | 0x20                    | lost         | 0           |
| torchao            | amax / 2688       | 0x08       | 0x08, as all below 2^-6 | kept         | 4           |
| vllm               | 1 / (amax / 2688) | 0x00       | 0x00, all codes 0 or 8  | kept         | 7           |
| transformer_engine | amax              | 0x00       | 0x00, nonzeros 7 or 15  | lost         | 0           |

A NaN of either sign makes its block's scale NaN (0x7F), and with it every code of the block the code of NaN; other
blocks do not see it. "Lost" means that the sign is asked of the scaled value by `< 0`: -0.0 gives code 0, but -0.1
gives code 8.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from . import formats
from .formats import BLOCK

SIXTH = 0xAAAAAB * 2.0**-26  # 1/6 as fp32 has it
FP32_MAX = torch.finfo(torch.float32).max
FP32_TINY = torch.finfo(torch.float32).tiny
E2M1_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)  # between code i and code i + 1


@dataclass(frozen=True)
class Recipe:
    """One producer's quantizer, in the three steps whose results it stores. All tensors but codes and scales are fp32.

    `global_scale(amax [...]) -> [...]`: from the largest magnitude of a tensor.
    `block_scale(amax [...], global_scale) -> uint8 [...]`: from the largest magnitude of each block, as e4m3 bytes.
    `codes(x [..., 16], scale uint8 [...], global_scale) -> uint8 [..., 16]`: e2m1, one per byte.
    The global scale broadcasts to the blocks [...].
    """

    global_scale: Callable[[Tensor], Tensor]
    block_scale: Callable[[Tensor, Tensor], Tensor]
    codes: Callable[[Tensor, Tensor, Tensor], Tensor]


def quantize(x: Tensor, global_scale: Tensor, recipe: str) -> tuple[Tensor, Tensor]:
    """`x` [..., K] as packed e2m1 uint8 [..., K/2] and e4m3 scale bytes uint8 [..., K/16], by the named recipe.

    `x` is float32, bfloat16 or float16; `global_scale` is float32, one number or one per row [...], and what that
    producer stores (see the module, and `global_scale_of`). Raises TypeError for another dtype, ValueError for an
    unknown recipe, K not a multiple of 16, or a global scale that does not broadcast to the rows.
    """
    steps = _find(recipe)
    _check_x(x)
    blocks = x.float().unflatten(-1, (-1, BLOCK))
    per_block = _per_row(global_scale, x.shape[:-1]).unsqueeze(-1)
    scale = steps.block_scale(blocks.abs().amax(-1), per_block)
    return formats.pack(steps.codes(blocks, scale, per_block).flatten(-2)), scale


def global_scale_of(amax: Tensor, recipe: str) -> Tensor:
    """The global scale that the recipe's producer stores for a tensor whose largest magnitude is float32 `amax` [...].

    An amax of 0 gives 0 in modelopt and torchao, which then divide 0 by 0; 1 in compressed_tensors, as does NaN; 0 in
    vllm. Raises TypeError for another dtype, ValueError for an unknown recipe.
    """
    formats.check_dtype("amax", amax, torch.float32)
    return _find(recipe).global_scale(amax)


def exact_codes(x: Tensor, numerator: Tensor, denominator: Tensor) -> Tensor:
    """The uint8 e2m1 codes nearest to x * numerator / denominator, ties to even, decided without any division.

    All float32; numerator and denominator are positive, finite and broadcast to `x`, which is not NaN. Each comparison
    |x| * numerator against midpoint * denominator is exact in float64: 24 + 24 and 3 + 24 bits.
    """
    left, right = x.double().abs() * numerator.double(), denominator.double()
    code = torch.zeros_like(x, dtype=torch.uint8)
    for below, midpoint in enumerate(E2M1_MIDPOINTS):
        above = left >= midpoint * right if below % 2 else left > midpoint * right
        code += above.to(torch.uint8)
    return code | _sign(torch.signbit(x))


# ModelOpt: NVFP4QTensor in modelopt/torch/quantization/qtensor/nvfp4_tensor.py, the path of dynamic block scales.


def _modelopt_block_scale(amax: Tensor, p: Tensor) -> Tensor:
    """amax / (6 p), at least 2^-9; what is exactly 0 becomes 1. An amax of 0 for the whole tensor gives NaN."""
    scale = amax / (6 * p)
    return formats.encode_e4m3(torch.where(scale == 0, 1.0, scale).clamp(min=2.0**-9))


def _modelopt_codes(x: Tensor, scale: Tensor, p: Tensor) -> Tensor:
    """x / (s p); a search among the midpoints puts NaN above them all."""
    y = x / (formats.decode_e4m3(scale) * p).unsqueeze(-1)
    return _round(y, y < 0, nan=7)


# compressed-tensors: calculate_qparams and generate_gparam in quantization/utils/helpers.py, cast_to_fp4 in
# quantization/utils/fp4_utils.py, as a CPU runs them on fp32 (bf16 weights would round amax / 6 to bf16).


def _compressed_tensors_global_scale(amax: Tensor) -> Tensor:
    """2688 / amax, which torch computes as 2688 * (1 / amax), in two roundings; NaN and infinity become 1."""
    g = amax.clamp(min=FP32_TINY).reciprocal() * 2688
    return torch.nan_to_num(g, nan=1.0, posinf=1.0)


def _compressed_tensors_block_scale(amax: Tensor, g: Tensor) -> Tensor:
    """g * (amax / 6); what rounds to 0 becomes 0.125."""
    scale = formats.encode_e4m3(g * _over(amax, 6))
    return torch.where(scale == 0, 0x20, scale)


def _compressed_tensors_codes(x: Tensor, scale: Tensor, g: Tensor) -> Tensor:
    """x / (s / g); packing turns what is no e2m1 value into code 0."""
    y = x / (formats.decode_e4m3(scale) / g).unsqueeze(-1)
    return _round(y, y < 0, nan=0)


# torchao: nvfp4_quantize in prototype/mx_formats/nvfp4_tensor.py, with a per-tensor scale.


def _torchao_block_scale(amax: Tensor, p: Tensor) -> Tensor:
    """(amax / 6) / p, at least 2^-6, the least normal number of e4m3."""
    return formats.encode_e4m3((_over(amax, 6) / p).clamp(min=2.0**-6))


def _torchao_codes(x: Tensor, scale: Tensor, p: Tensor) -> Tensor:
    """x * ((1 / p) / s); rounding by integer arithmetic makes code 4 of the NaN that a scale of 0x7F is."""
    y = x * (p.reciprocal() / formats.decode_e4m3(scale)).unsqueeze(-1)
    return _round(y, torch.signbit(y), nan=4)


# vLLM: the Triton kernel of ref_nvfp4_quant_dequant in layers/quantization/utils/nvfp4_emulation_utils.py. Pinned here
# where that leaves it open: the sign of zero is kept, and NaN is neither dropped from amax nor clamped.


def _vllm_global_scale(amax: Tensor) -> Tensor:
    """1 / (amax / 2688), the reciprocal of the input scale that a checkpoint stores; 0 for 0, as get_reciprocal."""
    p = _over(amax, 2688)
    return torch.where(p == 0, 0.0, p.reciprocal())


def _vllm_block_scale(amax: Tensor, s_global: Tensor) -> Tensor:
    """S * (amax * (1 / 6))."""
    return formats.encode_e4m3(s_global * (amax * SIXTH))


def _vllm_codes(x: Tensor, scale: Tensor, s_global: Tensor) -> Tensor:
    """x * (S / s), and x * 0 where s is 0, which leaves the sign of x."""
    s = formats.decode_e4m3(scale)
    y = x * torch.where(s == 0, 0.0, s_global / s).unsqueeze(-1)
    return _round(y, torch.signbit(y), nan=7)


# Transformer Engine: common/cast/nvfp4/core_nvfp4.cuh for the scales, NVFP4QuantizerRef in
# pytorch/custom_recipes/quantization_ref_nvfp4.py for the codes; a GPU's own conversion keeps the sign of zero instead.


def _transformer_engine_encode_scale(amax: Tensor) -> Tensor:
    """S = 2688 / amax, at most the largest fp32; 1 where amax or S is 0."""
    s_global = (torch.full_like(amax, 2688.0) / amax).clamp(max=FP32_MAX)
    return torch.where((amax == 0) | (s_global == 0), 1.0, s_global)


def _transformer_engine_block_scale(amax: Tensor, global_amax: Tensor) -> Tensor:
    """amax * (S * (1 / 6))."""
    return formats.encode_e4m3(amax * (_transformer_engine_encode_scale(global_amax) * SIXTH))


def _transformer_engine_codes(x: Tensor, scale: Tensor, global_amax: Tensor) -> Tensor:
    """x * (1 / (s * (1 / S))), that factor at most the largest fp32: it is so where s is 0, and x saturates."""
    decode_scale = _transformer_engine_encode_scale(global_amax).reciprocal()
    factor = (formats.decode_e4m3(scale) * decode_scale).reciprocal().clamp(max=FP32_MAX)
    y = x * factor.unsqueeze(-1)
    return _round(y, y < 0, nan=0)


RECIPES: dict[str, Recipe] = {
    "modelopt": Recipe(lambda amax: _over(amax, 2688), _modelopt_block_scale, _modelopt_codes),
    "compressed_tensors": Recipe(
        _compressed_tensors_global_scale, _compressed_tensors_block_scale, _compressed_tensors_codes
    ),
    "torchao": Recipe(lambda amax: _over(amax, 2688), _torchao_block_scale, _torchao_codes),
    "vllm": Recipe(_vllm_global_scale, _vllm_block_scale, _vllm_codes),
    "transformer_engine": Recipe(torch.clone, _transformer_engine_block_scale, _transformer_engine_codes),
}


def _round(y: Tensor, negative: Tensor, nan: int) -> Tensor:
    """The e2m1 codes of |y|, saturating, with the sign `negative`; `nan` where y is NaN."""
    return torch.where(y.isnan(), nan, formats.encode_e2m1(y.abs()) | _sign(negative))


def _sign(negative: Tensor) -> Tensor:
    return negative.to(torch.uint8) << 3


def _over(x: Tensor, divisor: float) -> Tensor:
    """x / divisor, rounded once: on a GPU, torch multiplies by the reciprocal of a divisor that is no tensor."""
    return x / torch.full_like(x, divisor)


def _find(recipe: str) -> Recipe:
    if recipe not in RECIPES:
        raise ValueError(f"recipe is {recipe!r}, but should be one of {', '.join(RECIPES)}")
    return RECIPES[recipe]


def _check_x(x: Tensor) -> None:
    formats.check_dtype("x", x, torch.float32, torch.bfloat16, torch.float16)
    if x.dim() == 0 or x.shape[-1] % BLOCK:
        raise ValueError(f"x has shape {list(x.shape)}, but its last dimension should be a multiple of {BLOCK}")


def _per_row(global_scale: Tensor, rows: torch.Size) -> Tensor:
    """`global_scale` expanded to the rows; a tensor of one element, however stored, serves them all."""
    formats.check_dtype("global_scale", global_scale, torch.float32)
    if global_scale.numel() == 1:
        return global_scale.reshape(()).expand(rows)
    try:
        return global_scale.expand(rows)
    except RuntimeError:
        shape = list(global_scale.shape)
        raise ValueError(f"global_scale has shape {shape}, but should broadcast to the rows {list(rows)}") from None
