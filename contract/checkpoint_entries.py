"""What a checkpoint's tensors hold of each expert, whether it has tensors of its own or a part of one for all.

Fused tensors as they are published (E experts; N rows of K weights, of which gate_up has the gate's first):
  llm-compressor, modeling/moe/pack_helpers.py: packed [E, N, K/2], scale [E, N, K/16]; globals and input scales [E, 1],
      for gate_up [E, 2].
  ModelOpt 0.47, export/unified_export_hf.py, of Llama 4: packed [E, K/2, N], scale [E, K/16, N], scalars for a layer.
      The same of gpt-oss has interleaved rows and a bias, by which it is told and refused.
  Transformers, unquantized: [E, N, K], in some families [E, K, N].
  As FlashML-org/FreeToken reads another export of compressed-tensors: packed [E * N, K/2], scale [E * N, K/16],
      scalars for a layer.
"""

from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .checkpoint_keys import Header

if TYPE_CHECKING:
    from torch import Tensor

_MATRICES = ("packed", "scale", "dense")
_HALVES = {"gate_up": ("gate", "up"), "down": ("down",)}


class Entry(NamedTuple):
    """One projection of one expert: "gate", "up" or "down", and the part of a tensor that holds its `role`.

    `shape` is that of the part as [rows, columns], [] or [1]. `index` is None for a whole tensor, a flat position in a
    tensor of scalars, or the slices of a matrix, which lies there `transposed` or not.
    """

    expert: int
    projection: str
    role: str
    dialect: str | None
    key: str
    file: Path
    shape: list[int]
    dtype: str
    index: tuple | int | None = None
    transposed: bool = False

    @property
    def where(self) -> str:
        return f"({self.projection} of expert {self.expert}, {self.file})"

    def read(self, tensors) -> "Tensor":
        """The part, from the open file that holds it."""
        if self.index is None:
            return tensors.get_tensor(self.key)
        if isinstance(self.index, int):
            return tensors.get_tensor(self.key).reshape(-1)[self.index]
        part = tensors.get_slice(self.key)[self.index]
        return part.T if self.transposed else part


def entries_of(headers: list[Header]) -> list[Entry]:
    """All projections of all experts that the layer's tensors hold; none of them has been read yet.

    Raises ValueError for a fused tensor of a shape that no exporter writes.
    """
    fused = {(h.projection, h.role): h.shape for h in headers if h.expert is None and h.role in _MATRICES}
    entries = []
    for header in headers:
        if header.expert is not None:
            entries.append(Entry(*header))
        elif header.role in _MATRICES:
            entries += _matrices(header, fused)
        else:
            entries += _scalars(header, fused)
    return entries


def _matrices(header: Header, fused: dict) -> list[Entry]:
    """The cuts through a tensor that stacks the matrices of all experts."""
    experts = _experts(header.projection, fused) if len(header.shape) == 2 else header.shape[0]
    if len(header.shape) not in (2, 3) or not experts or header.shape[0] % experts:
        raise ValueError(
            f"{header.key} has shape {header.shape}, but should be [experts, rows, columns] ({header.file})"
        )
    transposed, flat = _is_transposed(header.projection, fused), len(header.shape) == 2
    rows, columns = reversed(header.shape[1:]) if transposed else header.shape[-2:]
    rows //= experts if flat else 1
    halves, entries = _HALVES[header.projection], []
    for expert, (i, name) in product(range(experts), enumerate(halves)):
        low, high = i * rows // len(halves), (i + 1) * rows // len(halves)
        index = (slice(expert * rows + low, expert * rows + high),)
        if not flat:
            index = (expert, slice(None), slice(low, high)) if transposed else (expert, slice(low, high))
        entries.append(_part(header, expert, name, [high - low, columns], index, transposed))
    return entries


def _scalars(header: Header, fused: dict) -> list[Entry]:
    """The elements of a tensor that holds one scalar for the layer, each expert, or each expert's gate and up."""
    experts, halves = _experts(header.projection, fused) or prod(header.shape), _HALVES[header.projection]
    n = len(halves)
    steps = {(): (0, 0), (1,): (0, 0), (experts,): (1, 0), (experts, 1): (1, 0), (experts, n): (n, 1)}
    if tuple(header.shape) not in steps:
        wanted = " or ".join(str(list(shape)) for shape in steps)
        raise ValueError(f"{header.key} has shape {header.shape}, but should be {wanted} ({header.file})")
    by_expert, by_half = steps[tuple(header.shape)]
    return [
        _part(header, expert, name, [], expert * by_expert + i * by_half)
        for expert, (i, name) in product(range(experts), enumerate(halves))
    ]


def _part(header: Header, expert: int, projection: str, shape: list[int], index, transposed: bool = False) -> Entry:
    return Entry(expert, projection, *header[2:6], shape, header.dtype, index, transposed)


def _experts(projection: str, fused: dict) -> int:
    """How many experts the fused matrices of a projection stack; 0 where that cannot be told."""
    shapes = [fused[projection, role] for role in _MATRICES if (projection, role) in fused]
    if stacked := [shape[0] for shape in shapes if len(shape) == 3]:
        return max(stacked)
    gate_up, down = (fused.get((name, "packed"), []) for name in ("gate_up", "down"))
    if len(gate_up) != 2 or len(down) != 2 or not gate_up[1]:
        return 0
    return down[0] // (2 * gate_up[1])  # down has a row for each of the columns of gate_up


def _is_transposed(projection: str, fused: dict) -> bool:
    """Whether columns come before rows. Of packed weights the scales tell it: they are fewer along K alone."""
    packed, scale = fused.get((projection, "packed")), fused.get((projection, "scale"))
    if packed and scale:
        return len(packed) == 3 and scale == [packed[0], packed[1] // 8, packed[2]]
    gate_up, down = (fused.get((name, "dense"), []) for name in ("gate_up", "down"))
    return len(gate_up) == len(down) == 3 and (gate_up[1], gate_up[2]) == (down[2], 2 * down[1])
