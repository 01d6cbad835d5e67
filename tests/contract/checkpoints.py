"""Checkpoints for the tests: the fixtures of both tools, and tiny synthetic ones."""

import json
from itertools import product
from pathlib import Path

import torch
from safetensors.torch import save_file

from nvfp4_suite.contract.case import hashed

DATA = Path(__file__).resolve().parent.parent / "data" / "checkpoints"
FOLDERS = {"modelopt": DATA / "modelopt", "compressed_tensors": DATA / "compressed-tensors"}
TINY_SHAPES = {"gate_proj": (16, 32), "up_proj": (16, 32), "down_proj": (32, 16)}  # hidden 32, intermediate 16


def tiny(dialect: str, *, experts: int = 2, layers=(0,), input_scales: bool = True) -> dict[str, torch.Tensor]:
    """The tensors of a synthetic checkpoint by key; every dialect gets the same codes, block scales and amaxes."""
    tensors = {}
    for layer, expert, (projection, (n, k)) in product(layers, range(experts), TINY_SHAPES.items()):
        name = f"model.layers.{layer}.mlp.experts.{expert}.{projection}"
        packed = (hashed(f"{name}/packed", n, k // 2) & 0xFF).to(torch.uint8)
        scale = (hashed(f"{name}/scale", n, k // 16) % 0x7F).to(torch.uint8).view(torch.float8_e4m3fn)
        amax, input_amax = 1 + (hashed(f"{name}/amax", 2) >> 9).float() / 2**23
        parts = _PARTS[dialect](packed, scale, amax, input_amax)
        tensors |= {f"{name}.{suffix}": t for suffix, t in parts.items() if input_scales or "input" not in suffix}
    return tensors


def dense(*, experts: int = 2, layers=(0,), dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """The same experts, not quantized."""
    tensors = {}
    for layer, expert, (projection, (n, k)) in product(layers, range(experts), TINY_SHAPES.items()):
        key = f"model.layers.{layer}.mlp.experts.{expert}.{projection}.weight"
        tensors[key] = (hashed(key, n, k) / 2**31 - 1).to(dtype)
    return tensors


def _modelopt(packed, scale, amax, input_amax) -> dict:
    return {
        "weight": packed,
        "weight_scale": scale,
        "weight_scale_2": amax / 2688,
        "input_scale": input_amax / 2688,
    }


def _compressed_tensors(packed, scale, amax, input_amax) -> dict:
    return {
        "weight_packed": packed,
        "weight_scale": scale,
        "weight_global_scale": (2688 / amax).reshape(1),
        "input_global_scale": (2688 / input_amax).reshape(1),
    }


_PARTS = {"modelopt": _modelopt, "compressed_tensors": _compressed_tensors}


def write(folder: Path, tensors: dict) -> Path:
    """`tensors` as the single file of a checkpoint in `folder`, which is returned."""
    save_file(tensors, folder / "model.safetensors")
    return folder


def write_sharded(folder: Path, tensors: dict, shards: int = 3) -> Path:
    """`tensors` dealt out one by one over `shards` files with an index, so that one projection lies in several."""
    return write_indexed(
        folder, tensors, {key: f"model-{i % shards}.safetensors" for i, key in enumerate(sorted(tensors))}
    )


def write_indexed(folder: Path, tensors: dict, weight_map: dict[str, str]) -> Path:
    """`tensors` in the files that `weight_map` names by key, and the index that says so."""
    for file in set(weight_map.values()):
        save_file({key: tensors[key] for key in tensors if weight_map[key] == file}, folder / file)
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
