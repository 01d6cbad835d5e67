"""Bank files: layers as they were bound, in one safetensors file that is read back as what was written.

A layer's tensors are L.FIELD, with the fields of its banks, input scales too. The metadata holds the name of the
format, its version, and for each layer the kind of its banks and the kernel that they were bound to.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING

from .banks import ExpertBanks
from .binding import Bound
from .checkpoint_files import open_tensors
from .dense_banks import DenseBanks

if TYPE_CHECKING:
    from torch import Tensor

FORMAT, VERSION = "nvfp4-suite banks", "1"
_KINDS = {"nvfp4": ExpertBanks, "dense": DenseBanks}


def save_banks(path: str | Path, layers: Mapping[int, Bound]) -> None:
    """Writes `layers` to `path`; what was there before is there until the new file is complete.

    Raises ValueError for no layers, a kernel without a name and a scale that is not finite, naming the layer.
    """
    from safetensors.torch import save_file

    path, tensors, about = Path(path), {}, {}
    if not layers:
        raise ValueError(f"there are no layers to write to {path}, but should be at least one")
    for layer, (kernel, banks) in layers.items():
        if not isinstance(kernel, str) or not kernel:
            raise ValueError(f"layer {layer} is bound to {kernel!r}, but should name a kernel")
        _check_finite(banks, layer, path)
        kind = next(kind for kind, of in _KINDS.items() if isinstance(banks, of))
        about[layer] = {"kind": kind, "kernel": kernel, "tensors": [name for name, _ in banks.tensors()]}
        tensors |= {f"{layer}.{name}": tensor.cpu() for name, tensor in banks.tensors()}
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        save_file(_apart(tensors), part, metadata={"format": FORMAT, "version": VERSION, "layers": json.dumps(about)})
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _apart(tensors: dict[str, "Tensor"]) -> dict[str, "Tensor"]:
    """`tensors` without any two that share memory, as layers with the same experts may: safetensors refuses those."""
    memory, apart = set(), {}
    for key, tensor in tensors.items():
        at = tensor.untyped_storage().data_ptr()
        apart[key] = tensor.clone() if at in memory else tensor
        memory.add(at)
    return apart


def saved_layers(path: str | Path) -> dict[int, str]:
    """The kernel of each layer in the file. Raises as load_banks does."""
    path = Path(path)
    with open_tensors(path) as tensors:
        return {int(layer): about["kernel"] for layer, about in _layers(path, tensors.metadata()).items()}


def load_banks(path: str | Path, layer: int, device="cpu") -> Bound:
    """The banks of `layer` on `device`, and the kernel that they were written for.

    Raises FileNotFoundError; ValueError for a file that is incomplete, no bank file or of another version, for wrong
    shapes and for a scale that is not finite; TypeError for wrong dtypes; KeyError for a missing layer or tensor. Each
    names the file, and the tensor and its expert where there is one.
    """
    path = Path(path)
    with open_tensors(path) as tensors:
        layers = _layers(path, tensors.metadata())
        if str(layer) not in layers:
            raise KeyError(f"layer {layer} is not in {path}; layers that are: {', '.join(layers)}")
        about, there = layers[str(layer)], set(tensors.keys())
        banks = {}
        for name in about["tensors"]:
            if (key := f"{layer}.{name}") not in there:
                raise KeyError(f"{key} is missing from {path}")
            banks[name] = tensors.get_tensor(key).clone()  # in a file they are not aligned to 16 bytes
    try:
        banks = _KINDS[about["kind"]](**banks)
    except (TypeError, ValueError) as error:
        raise type(error)(f"layer {layer} of {path}: {error}") from error
    _check_finite(banks, layer, path)
    return Bound(about["kernel"], banks.to(device))


def _layers(path: Path, metadata: dict[str, str] | None) -> dict[str, dict]:
    """What the metadata say of each layer, by its number."""
    metadata = metadata or {}
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is no bank file: its format is {metadata.get('format')!r}, but should be {FORMAT!r}")
    if metadata.get("version") != VERSION:
        raise ValueError(f"{path} is a bank file of version {metadata.get('version')}, but should be of {VERSION}")
    try:
        layers = json.loads(metadata.get("layers", ""))
    except ValueError as error:
        raise ValueError(f"{path} says of its layers what is not JSON: {error}") from error
    if not isinstance(layers, dict):
        raise ValueError(f"{path} says of its layers {layers}, but should say what each of them is")
    for layer, about in layers.items():
        if not _is_about(about):
            raise ValueError(f"{path} says of layer {layer} {about}, but should say kind, kernel and tensors")
    return layers


def _is_about(about) -> bool:
    """A kind that there is, with a kernel's name and its own fields."""
    if not isinstance(about, dict) or about.get("kind") not in _KINDS or not isinstance(about.get("kernel"), str):
        return False
    needed = [(f.name, f.default is MISSING) for f in fields(_KINDS[about["kind"]])]
    named = about.get("tensors")
    return isinstance(named, list) and {n for n, must in needed if must} <= set(named) <= {n for n, _ in needed}


def _check_finite(banks: ExpertBanks | DenseBanks, layer: int, path: Path) -> None:
    """No block scale is NaN, every global is finite, and every input scale is positive as well."""
    for name, tensor in banks.tensors():
        if not name.endswith(("scale", "global")):
            continue
        values = tensor.float()
        bad = ~values.isfinite() | (values <= 0 if name.endswith("input_scale") else values.isnan())
        if bad.any():
            expert, *at = bad.nonzero()[0].tolist()
            place = "".join(f", {axis} {i}" for axis, i in zip(("row", "block"), at, strict=False))
            wanted = "positive and finite" if name.endswith("input_scale") else "finite"
            value = values[expert][tuple(at)].item()
            raise ValueError(f"{layer}.{name} is {value} at expert {expert}{place}, but should be {wanted} ({path})")
