"""The producers' own packages in one form: what they store as global scale, and the bytes they make of a tensor."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor

with warnings.catch_warnings():  # theirs, while they are imported
    warnings.simplefilter("ignore")
    from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
    from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
    from compressed_tensors.quantization.utils.helpers import compute_dynamic_scales_and_zp, generate_gparam
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale
    from torchao.prototype.mx_formats.utils import from_blocked, to_blocked  # noqa: F401

Bytes = tuple[Tensor, Tensor]  # packed codes [N, K/2] and scales [N, K/16], uint8
NVFP4 = preset_name_to_scheme("NVFP4", ["Linear"])


@dataclass(frozen=True)
class Producer:
    """`global_scale(amax)` of a tensor's largest magnitude; `quantize(x [N, K], global_scale)`."""

    recipe: str  # ours
    global_scale: Callable[[Tensor], Tensor]
    quantize: Callable[[Tensor, Tensor], Bytes]


def _modelopt_global_scale(amax: Tensor) -> Tensor:
    return NVFP4QTensor.get_weights_scaling_factor_2(amax.reshape(1))


def _modelopt(x: Tensor, global_scale: Tensor) -> Bytes:
    tensor, scale, _ = NVFP4QTensor.quantize(x.clone(), 16, None, global_scale)
    return tensor._quantized_data, scale.view(torch.uint8)


def _modelopt_static(x: Tensor, global_scale: Tensor) -> Bytes:
    """With block scales from amaxes that a calibration stored, as an export of static quantizers takes them."""
    block_amax = x.unflatten(-1, (-1, 16)).abs().amax(-1)
    quantizer = SimpleNamespace(block_sizes={-1: 16}, global_amax=global_scale * 2688, _amax=block_amax)
    scale, _ = NVFP4QTensor.get_weights_scaling_factor_from_quantizer(quantizer, x, global_scale)
    tensor, _, _ = NVFP4QTensor.quantize(x.clone(), 16, scale, global_scale)
    return tensor._quantized_data, scale.view(torch.uint8)


def _compressed_tensors_global_scale(amax: Tensor) -> Tensor:
    return generate_gparam(-amax, amax).reshape(())


def _compressed_tensors(x: Tensor, global_scale: Tensor) -> Bytes:
    divisor = global_scale.reshape(1)
    scale, _ = compute_dynamic_scales_and_zp(x, NVFP4.weights, torch.nn.Module(), divisor)
    weights = {"weight": x.clone(), "weight_scale": scale, "weight_global_scale": divisor}
    stored = NVFP4PackedCompressor.compress(weights, NVFP4)
    return stored["weight_packed"], stored["weight_scale"].view(torch.uint8)


def _torchao(x: Tensor, global_scale: Tensor) -> Bytes:
    scale, packed = nvfp4_quantize(x, 16, global_scale)
    return packed, scale.view(torch.uint8)


PRODUCERS = {
    "modelopt": Producer("modelopt", _modelopt_global_scale, _modelopt),
    "modelopt, static": Producer("modelopt", _modelopt_global_scale, _modelopt_static),
    "compressed-tensors": Producer("compressed_tensors", _compressed_tensors_global_scale, _compressed_tensors),
    "torchao": Producer("torchao", per_tensor_amax_to_scale, _torchao),
}
