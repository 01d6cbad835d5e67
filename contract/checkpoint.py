"""Checkpoints: one layer's NVFP4 experts, from safetensors to ExpertBanks.

Reads two dialects, told apart by the tensor names of each projection, never by a config file. ModelOpt stores
multipliers; compressed-tensors stores divisors, which become fl32(1 / x) here.
"""

import json
import re
from itertools import groupby, product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .banks import ExpertBanks

if TYPE_CHECKING:
    from torch import Tensor

# Suffix of the key: role, and the dialect that it belongs to (None: both).
_SUFFIXES = {
    "weight": ("packed", "ModelOpt"),
    "weight_packed": ("packed", "compressed-tensors"),
    "weight_scale": ("scale", None),
    "weight_scale_2": ("global", "ModelOpt"),
    "weight_global_scale": ("global", "compressed-tensors"),
    "input_scale": ("input_scale", "ModelOpt"),
    "input_global_scale": ("input_scale", "compressed-tensors"),
}
# Shapes for N rows of K weights: packed [N, K/2], scale [N, K/16]; the others hold one element.
_DTYPES = {"packed": "U8", "scale": "F8_E4M3", "global": "F32", "input_scale": "F32"}

# The second name of each projection is that of the Mixtral family.
_PROJECTIONS = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}

# "mtp" holds a draft model, whose layers count from 0 again.
_KEY = re.compile(rf"(?!.*\bmtp\.).*\blayers\.(\d+)\.(?:\w+\.)*experts\.(\d+)\.({'|'.join(_PROJECTIONS)})\.(.+)")


class _Entry(NamedTuple):
    """One tensor of the layer, as its key and its file's header describe it."""

    expert: int
    projection: str
    role: str
    dialect: str | None
    key: str
    file: Path
    shape: list[int]


def load_experts(path: str | Path, layer: int, device="cpu") -> ExpertBanks:
    """The experts of `layer` in the checkpoint at `path`, on `device`.

    `path` is a folder with model.safetensors.index.json or model.safetensors, or one of these files. Keys end in
    layers.L. ... .experts.E.{gate_proj, up_proj, down_proj}.SUFFIX, or w1, w3, w2 for these three. Gate and up keep
    their own globals; `gate_up_input_scale` is the larger of theirs. No input scale in the layer: none in the banks.

    Raises FileNotFoundError for a missing file, KeyError for a missing layer, expert or tensor, TypeError for a wrong
    dtype (bf16 and fp8 experts too), ValueError for a wrong shape, a tensor of no dialect or of two in one projection,
    a block scale that is NaN, and a global or input scale that is not positive and finite.
    """
    entries = _read_headers(_weight_map(Path(path)), layer)
    _check_complete(entries)
    banks = _empty_banks(entries, *_check_shapes(entries), device)
    for file, group in groupby(entries, key=lambda entry: entry.file):
        with _open(file) as tensors:
            for entry in group:
                _place(entry, tensors.get_tensor(entry.key), banks)
    return ExpertBanks(**banks)


def _weight_map(path: Path) -> dict[str, Path]:
    """The file of every tensor in the checkpoint, by key."""
    if path.is_dir():
        index = path / "model.safetensors.index.json"
        path = index if index.is_file() else path / "model.safetensors"
    if path.suffix != ".json":
        with _open(path) as tensors:
            return dict.fromkeys(tensors.keys(), path)
    index = json.loads(path.read_text(encoding="utf-8"))
    if "weight_map" not in index:
        raise ValueError(f"{path} has no weight_map, but should be the index of a sharded checkpoint")
    return {key: path.parent / file for key, file in index["weight_map"].items()}


def _open(file: Path):
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(file, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{file} is not a complete safetensors file: {error}") from error


def _read_headers(weight_map: dict[str, Path], layer: int) -> list[_Entry]:
    """The layer's expert tensors, file by file."""
    layers = {key: int(match[1]) for key in weight_map if (match := _KEY.fullmatch(key))}
    if layer not in layers.values():
        raise KeyError(f"layer {layer} has no routed experts here; layers that have: {sorted(set(layers.values()))}")
    wanted = sorted((weight_map[key], key) for key in layers if layers[key] == layer)
    entries = []
    for file, group in groupby(wanted, key=lambda pair: pair[0]):
        with _open(file) as tensors:
            there = set(tensors.keys())
            for _, key in group:
                if key not in there:
                    raise KeyError(f"{key} is missing from {file}, where the index has it")
                entries.append(_entry(key, file, tensors.get_slice(key)))
    return entries


def _entry(key: str, file: Path, header) -> _Entry:
    _, expert, projection, suffix = _KEY.fullmatch(key).groups()
    if suffix not in _SUFFIXES:
        raise ValueError(f"{key} is no tensor of NVFP4 experts; these are {', '.join(_SUFFIXES)}")
    role, dialect = _SUFFIXES[suffix]
    if header.get_dtype() != _DTYPES[role]:
        raise TypeError(f"{key} is {header.get_dtype()}, but should be {_DTYPES[role]} in NVFP4 experts")
    return _Entry(int(expert), _PROJECTIONS[projection], role, dialect, key, file, header.get_shape())


def _check_complete(entries: list[_Entry]) -> None:
    """Experts 0 to E-1, three projections each, each with every tensor of one dialect and none twice."""
    there = {(entry.expert, entry.projection) for entry in entries}
    wanted = product(range(max(there)[0] + 1), ("gate", "up", "down"))
    if missing := [f"{projection} of expert {e}" for e, projection in wanted if (e, projection) not in there]:
        raise KeyError(f"the layer has no tensor for {', '.join(missing)}")
    roles = sorted({"packed", "scale", "global"} | {entry.role for entry in entries})
    for _, group in groupby(sorted(entries), key=lambda entry: entry[:2]):
        _check_projection(list(group), roles)


def _check_projection(group: list[_Entry], roles: list[str]) -> None:
    dialects = {entry.dialect for entry in group} - {None}
    name = group[0].key.rpartition(".")[0]
    if len(dialects) > 1:
        raise ValueError(f"{name} has tensors of both dialects: {', '.join(entry.key for entry in group)}")
    for role in roles:
        keys = [entry.key for entry in group if entry.role == role]
        if not keys:
            names = [s for s, (r, d) in _SUFFIXES.items() if r == role and (not dialects or d in {None, *dialects})]
            raise KeyError(f"{name}.{' or '.join(names)} is missing (expert {group[0].expert})")
        if len(keys) > 1:
            raise ValueError(f"{' and '.join(keys)} are the same tensor of expert {group[0].expert}")


def _check_shapes(entries: list[_Entry]) -> tuple[int, int]:
    """Hidden and intermediate as expert 0's gate has them, once everything else agrees."""
    first = next(e for e in entries if (e.expert, e.projection, e.role) == (0, "gate", "packed"))
    rows, columns = first.shape if len(first.shape) == 2 else (0, 0)
    if not rows or not columns or rows % 16 or columns % 8:
        raise ValueError(f"{first.key} has shape {first.shape}, but should be [16 x i, 8 x j] with i and j at least 1")
    for entry in entries:
        n, k = (2 * columns, rows) if entry.projection == "down" else (rows, 2 * columns)
        wanted = {"packed": [[n, k // 2]], "scale": [[n, k // 16]]}.get(entry.role, [[], [1]])
        if entry.shape not in wanted:
            raise ValueError(f"{entry.key} has shape {entry.shape}, but should be {' or '.join(map(str, wanted))}")
    return 2 * columns, rows


def _empty_banks(entries: list[_Entry], hidden: int, intermediate: int, device) -> dict[str, "Tensor"]:
    """Memory for the whole layer, so that each tensor is copied once, into its place."""
    import torch

    experts = 1 + max(entry.expert for entry in entries)
    banks = {}
    for name, rows, k in (("gate_up", 2 * intermediate, hidden), ("down", hidden, intermediate)):
        banks[f"{name}_packed"] = torch.empty(experts, rows, k // 2, dtype=torch.uint8, device=device)
        banks[f"{name}_scale"] = torch.empty(experts, rows, k // 16, dtype=torch.float8_e4m3fn, device=device)
        banks[f"{name}_global"] = torch.empty(experts, rows, dtype=torch.float32, device=device)
        if any(entry.role == "input_scale" for entry in entries):
            banks[f"{name}_input_scale"] = torch.zeros(experts, dtype=torch.float32, device=device)
    return banks


def _place(entry: _Entry, tensor: "Tensor", banks: dict[str, "Tensor"]) -> None:
    bank = "down" if entry.projection == "down" else "gate_up"
    target = banks[f"{bank}_{entry.role}"][entry.expert]
    if entry.role == "input_scale":
        target.fill_(max(target.item(), _multiplier(entry, tensor)))  # it is 0 at first
        return
    if entry.role == "scale":
        _check_block_scales(entry, tensor)
    half = len(target) // 2
    rows = {"gate": slice(0, half), "up": slice(half, None), "down": slice(None)}[entry.projection]
    target[rows] = _multiplier(entry, tensor) if entry.role == "global" else tensor


def _check_block_scales(entry: _Entry, scale: "Tensor") -> None:
    nan = scale.float().isnan().nonzero().tolist()  # e4m3 has NaN (0x7F, 0xFF) and no infinity
    if nan:
        raise ValueError(f"{entry.key} is NaN at row {nan[0][0]}, block {nan[0][1]}, but should be finite")


def _multiplier(entry: _Entry, tensor: "Tensor") -> float:
    """What the weights are multiplied with: the stored value, or fl32(1 / x) of a stored divisor."""
    stored = tensor.item()
    multiplier = (1 / tensor if entry.dialect == "compressed-tensors" else tensor).item()
    if not all(0 < value < float("inf") for value in (stored, multiplier)):
        raise ValueError(f"{entry.key} is {stored}, as a multiplier {multiplier}, but should be positive and finite")
    return multiplier
