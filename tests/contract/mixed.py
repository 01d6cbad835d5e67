"""A model whose layers are in four formats, made of the two fixtures, and the kernels that it needs.

layer 0  ModelOpt's layer 0
layer 1  compressed-tensors' layer 1, dequantized as that tool does it: bf16
layer 2  compressed-tensors' layer 0
layer 3  ModelOpt's layer 1 without its input scales
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from nvfp4_suite.contract.kernel import Promise
from nvfp4_suite.reference import formats

from .checkpoints import FOLDERS, write_sharded


def moved(tensors: dict, old: int, new: int) -> dict:
    """Those of layer `old`, as those of layer `new`."""
    return {k.replace(f"layers.{old}.", f"layers.{new}."): t for k, t in tensors.items() if f"layers.{old}." in k}


def dequantized(tensors: dict) -> dict:
    """compressed-tensors' weights as it gives them: fp32 e2m1 * (scale / global), then bf16."""
    weights = {}
    for key in (key for key in tensors if key.endswith(".weight_packed")):
        name = key.removesuffix(".weight_packed")
        factor = tensors[f"{name}.weight_scale"].float() / tensors[f"{name}.weight_global_scale"]
        codes = formats.decode_e2m1(formats.unpack(tensors[key]))
        weights[f"{name}.weight"] = (codes * factor.repeat_interleave(16, dim=1)).bfloat16()
    return weights


def mixed() -> dict[str, torch.Tensor]:
    """The model's tensors by key."""
    modelopt, compressed = (load_file(folder / "model.safetensors") for folder in FOLDERS.values())
    bare = {key: t for key, t in moved(modelopt, 1, 3).items() if not key.endswith("input_scale")}
    return moved(modelopt, 0, 0) | dequantized(moved(compressed, 1, 1)) | moved(compressed, 0, 2) | bare


def write_mixed(folder: Path) -> Path:
    """The model in three shards, with the config that an exporter of several formats writes."""
    quantization = {"quant_method": "compressed-tensors", "format": "mixed-precision"}
    (folder / "config.json").write_text(json.dumps({"num_experts": 4, "quantization_config": quantization}))
    return write_sharded(folder, mixed())


class Stub:
    """A kernel that is asked for nothing but its promise."""

    def __init__(self, *taken: str):
        self.promise = Promise(formats=taken)
