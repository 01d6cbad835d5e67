"""One layer of a checkpoint, checked by its keys and headers alone, before any weight is read."""

from itertools import groupby, product
from pathlib import Path
from typing import NamedTuple

from .checkpoint_entries import Entry, entries_of
from .checkpoint_files import configured_experts, weight_map
from .checkpoint_keys import DENSE, expert_of, layer_of, read_headers, wanted_key

_SHOWN = 6  # of the tensors that are missing


class Layer(NamedTuple):
    """A layer whose experts are complete and agree: "nvfp4", "bf16" or "fp16", all of them."""

    kind: str
    experts: int
    hidden: int
    intermediate: int
    input_scales: bool
    entries: list[Entry]


class Index(NamedTuple):
    """Where a checkpoint has routed experts: layer -> key -> file; and how many each layer should have, by whom."""

    path: Path
    layers: dict[int, dict[str, Path]]
    experts: int
    counted_by: str


def index_of(path: str | Path) -> Index:
    """The checkpoint at `path`. What config.json does not say, the layer that has most experts does."""
    files, layers = weight_map(path), {}
    for key, file in files.items():
        if (layer := layer_of(key)) is not None:
            layers.setdefault(layer, {})[key] = file
    numbers = [expert for keys in layers.values() for key in keys if (expert := expert_of(key)) is not None]
    most = 1 + max(numbers, default=-1), "the number of experts in another layer"
    return Index(Path(path), dict(sorted(layers.items())), *(configured_experts(path) or most))


def examine(index: Index, layer: int) -> Layer:
    """`layer` of a checkpoint; raises as `checkpoint.load_layer` does, but for the values of scales."""
    if layer not in index.layers:
        raise KeyError(f"layer {layer} has no routed experts in {index.path}; layers that have: {list(index.layers)}")
    entries = entries_of(read_headers(index.layers[layer]))
    kind = _kind(entries, index.path)
    experts = _check_experts(entries, index)
    _check_roles(entries, index.path, ["packed", "scale", "global"] if kind == "nvfp4" else ["dense"])
    hidden, intermediate = _check_shapes(entries)
    input_scales = any(entry.role == "input_scale" for entry in entries)
    return Layer(kind, experts, hidden, intermediate, input_scales, entries)


def _kind(entries: list[Entry], path: Path) -> str:
    kinds = {DENSE.get(entry.dtype, "nvfp4"): entry.key for entry in entries}
    if len(kinds) > 1:
        found = " and ".join(f"{kind} ({key})" for kind, key in sorted(kinds.items()))
        raise ValueError(f"the layer's experts in {path} are of several formats, {found}, but should be of one")
    return next(iter(kinds))


def _check_experts(entries: list[Entry], index: Index) -> int:
    """The number of experts: all that there should be are there, with three projections each."""
    there = {(entry.expert, entry.projection) for entry in entries}
    own = 1 + max(expert for expert, _ in there)
    wanted = product(range(max(own, index.experts)), ("gate", "up", "down"))
    missing = [f"{projection} of expert {e}" for e, projection in wanted if (e, projection) not in there]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        because = f": {index.counted_by} is {index.experts}" if index.experts > own else ""
        raise KeyError(f"the layer has no tensor for {', '.join(missing[:_SHOWN])}{more} in {index.path}{because}")
    return own


def _check_roles(entries: list[Entry], path: Path, roles: list[str]) -> None:
    """Each projection has every tensor of one dialect, and none twice."""
    if any(entry.role == "input_scale" for entry in entries):
        roles = [*roles, "input_scale"]
    by_projection = sorted(entries, key=lambda entry: entry[:2])
    for _, group in groupby(by_projection, key=lambda entry: entry[:2]):
        _check_projection(list(group), path, roles)


def _check_projection(group: list[Entry], path: Path, roles: list[str]) -> None:
    dialects = {entry.dialect for entry in group} - {None}
    if len(dialects) > 1:
        name = group[0].key.rpartition(".")[0]
        raise ValueError(f"{name} has tensors of both dialects: {', '.join(entry.key for entry in group)} ({path})")
    for role in roles:
        keys = [entry.key for entry in group if entry.role == role]
        if not keys:
            lacking = wanted_key(group[0].key, role, dialects)
            raise KeyError(f"{lacking} is missing (expert {group[0].expert}) from {path}")
        if len(keys) > 1:
            raise ValueError(f"{' and '.join(keys)} are the same tensor of expert {group[0].expert} ({path})")


def _check_shapes(entries: list[Entry]) -> tuple[int, int]:
    """Hidden and intermediate as expert 0's gate has them, once everything else agrees."""
    of_gate = (e for e in entries if (e.expert, e.projection) == (0, "gate"))
    first = next(e for e in of_gate if e.role in ("packed", "dense"))
    a_byte = 2 if first.role == "packed" else 1  # the weights of one element of the tensor
    rows, columns = first.shape if len(first.shape) == 2 else (0, 0)
    if not rows or not columns or rows % 16 or columns * a_byte % 16:
        wanted = f"[16 x i, {16 // a_byte} x j] with i and j at least 1"
        raise ValueError(f"{first.key} has shape {first.shape}, but should be {wanted} {first.where}")
    hidden = columns * a_byte
    for entry in entries:
        n, k = (hidden, rows) if entry.projection == "down" else (rows, hidden)
        matrices = {"packed": [[n, k // 2]], "scale": [[n, k // 16]], "dense": [[n, k]]}
        wanted = matrices.get(entry.role, [[], [1]])
        if entry.shape not in wanted:
            either = " or ".join(map(str, wanted))
            raise ValueError(f"{entry.key} has shape {entry.shape}, but should be {either} {entry.where}")
    return hidden, rows
