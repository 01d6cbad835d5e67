"""Checkpoints: one layer's experts, from safetensors to banks.

Formats are told by the tensors of each layer, never by a config file. ModelOpt stores multipliers; compressed-tensors
stores divisors, which become fl32(1 / x) here. checkpoint_entries.py lists the forms of fused experts.
"""

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from .banks import ExpertBanks
from .checkpoint_entries import Entry
from .checkpoint_files import open_tensors
from .checkpoint_layer import Layer, examine, index_of
from .dense_banks import DenseBanks

if TYPE_CHECKING:
    from torch import Tensor


def load_layer(path: str | Path, layer: int, device="cpu") -> ExpertBanks | DenseBanks:
    """The experts of `layer` in the checkpoint at `path`, on `device`: DenseBanks where they are in bf16 or fp16.

    `path` is a folder with model.safetensors.index.json or model.safetensors, or one of these files. Keys end in
    layers.L. ... .experts.E.{gate_proj, up_proj, down_proj}.SUFFIX, or w1, w3, w2 for these three, or fused in
    layers.L. ... .experts.{gate_up_proj, down_proj}. Gate and up keep their own globals; `gate_up_input_scale` is the
    larger of theirs. No input scale in the layer: none in the banks.

    A layer has as many experts as the config.json beside it says or, without one, as the layer that has most.

    Raises FileNotFoundError for a missing file, KeyError for a missing layer, expert or tensor, TypeError for a wrong
    dtype (fp8 experts too), ValueError for a wrong shape, a tensor of no dialect or of two in one projection, experts
    of several formats, a block scale that is NaN, a global or input scale that is not positive and finite, and a file
    that is damaged. Errors name the file, the key and the expert.
    """
    return _read(examine(index_of(path), layer), device)


def load_experts(path: str | Path, layer: int, device="cpu") -> ExpertBanks:
    """`load_layer` of a layer that should be in NVFP4; TypeError where its experts are not quantized."""
    found = examine(index_of(path), layer)
    if found.kind != "nvfp4":
        first = found.entries[0]
        raise TypeError(
            f"layer {layer} has {found.kind} experts, but should have NVFP4: {first.key} {first.where}; "
            "load_layer reads both"
        )
    return _read(found, device)


def _read(layer: Layer, device) -> ExpertBanks | DenseBanks:
    banks = _empty_banks(layer, device)
    for file, group in groupby(layer.entries, key=lambda entry: entry.file):
        with open_tensors(file) as tensors:
            for entry in group:
                _place(entry, entry.read(tensors), banks)
    return ExpertBanks(**banks) if layer.kind == "nvfp4" else DenseBanks(**banks)


def _empty_banks(layer: Layer, device) -> dict[str, "Tensor"]:
    """Memory for the whole layer, so that each tensor is copied once, into its place."""
    import torch

    widths = {"gate_up": (2 * layer.intermediate, layer.hidden), "down": (layer.hidden, layer.intermediate)}
    banks = {}
    for name, (rows, k) in widths.items():
        for role, (dtype, *shape) in _memory(layer, rows, k).items():
            make = torch.zeros if role == "input_scale" else torch.empty
            banks[_field(name, role)] = make(layer.experts, *shape, dtype=dtype, device=device)
    return banks


def _memory(layer: Layer, rows: int, k: int) -> dict[str, tuple]:
    """What each role needs for an expert's `rows` of `k` weights: dtype and shape."""
    import torch

    if layer.kind != "nvfp4":
        return {"dense": ({"bf16": torch.bfloat16, "fp16": torch.float16}[layer.kind], rows, k)}
    memory = {
        "packed": (torch.uint8, rows, k // 2),
        "scale": (torch.float8_e4m3fn, rows, k // 16),
        "global": (torch.float32, rows),
    }
    return memory | ({"input_scale": (torch.float32,)} if layer.input_scales else {})


def _field(name: str, role: str) -> str:
    return name if role == "dense" else f"{name}_{role}"


def _place(entry: Entry, tensor: "Tensor", banks: dict[str, "Tensor"]) -> None:
    bank = "down" if entry.projection == "down" else "gate_up"
    target = banks[_field(bank, entry.role)][entry.expert]
    if entry.role == "input_scale":
        target.fill_(max(target.item(), _multiplier(entry, tensor)))  # it is 0 at first
        return
    if entry.role == "scale":
        _check_block_scales(entry, tensor)
    half = len(target) // 2
    rows = {"gate": slice(0, half), "up": slice(half, None), "down": slice(None)}[entry.projection]
    target[rows] = _multiplier(entry, tensor) if entry.role == "global" else tensor


def _check_block_scales(entry: Entry, scale: "Tensor") -> None:
    nan = scale.float().isnan().nonzero().tolist()  # e4m3 has NaN (0x7F, 0xFF) and no infinity
    if nan:
        raise ValueError(
            f"{entry.key} is NaN at row {nan[0][0]}, block {nan[0][1]}, but should be finite {entry.where}"
        )


def _multiplier(entry: Entry, tensor: "Tensor") -> float:
    """What the weights are multiplied with: the stored value, or fl32(1 / x) of a stored divisor."""
    stored = tensor.item()
    multiplier = (1 / tensor if entry.dialect == "compressed-tensors" else tensor).item()
    if not all(0 < value < float("inf") for value in (stored, multiplier)):
        value = f"{stored}, as a multiplier {multiplier}"
        raise ValueError(f"{entry.key} is {value}, but should be positive and finite {entry.where}")
    return multiplier
