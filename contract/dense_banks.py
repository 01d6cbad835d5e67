"""DenseBanks: the experts of a layer that a checkpoint leaves in 16 bits beside layers in NVFP4."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .banks import check_layout
from .shapes import LayerShape

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class DenseBanks:
    """One layer's experts as they are multiplied, with E experts, H hidden, I intermediate.

    `gate_up` [E, 2I, H] (gate rows first, then up rows) and `down` [E, H, I], both bf16 or both fp16, contiguous,
    16-byte aligned and on one device. `reference.moe.dense_layer` takes them in float64.

    Raises TypeError for a wrong dtype, ValueError for a wrong shape, device or layout; both name the field.
    """

    gate_up: "Tensor"
    down: "Tensor"

    def __post_init__(self) -> None:
        import torch

        for name, tensor in self.tensors():
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"{name} is a {type(tensor).__name__}, but should be a torch.Tensor")
        if self.gate_up.dtype not in (torch.bfloat16, torch.float16):
            raise TypeError(f"gate_up is {self.gate_up.dtype}, but should be torch.bfloat16 or torch.float16")
        if self.down.dtype != self.gate_up.dtype:
            raise TypeError(f"down is {self.down.dtype}, but should be {self.gate_up.dtype} like gate_up")
        _check_shapes(self.gate_up, self.down)
        check_layout(self.tensors())

    @property
    def experts(self) -> int:
        return self.gate_up.shape[0]

    @property
    def hidden(self) -> int:
        return self.gate_up.shape[2]

    @property
    def intermediate(self) -> int:
        return self.down.shape[2]

    @property
    def device(self):
        return self.gate_up.device

    @property
    def formats(self) -> tuple[str, ...]:
        """What a kernel must take to serve them, best first, as in `Promise.formats`."""
        import torch

        return ("bf16" if self.gate_up.dtype == torch.bfloat16 else "fp16",)

    def layer_shape(self, top_k: int) -> LayerShape:
        return LayerShape(self.experts, top_k, self.hidden, self.intermediate)

    def tensors(self) -> list[tuple[str, "Tensor"]]:
        """The fields by name."""
        return [("gate_up", self.gate_up), ("down", self.down)]

    def to(self, device) -> "DenseBanks":
        """The same banks on `device`."""
        return DenseBanks(self.gate_up.to(device), self.down.to(device))


def _check_shapes(gate_up: "Tensor", down: "Tensor") -> None:
    shape = list(gate_up.shape)
    if len(shape) != 3 or not shape[0] or shape[1] % 32 or shape[2] % 16 or 0 in shape:
        raise ValueError(f"gate_up has shape {shape}, but should be [experts, 32 x i, 16 x j] with i and j at least 1")
    wanted = [shape[0], shape[2], shape[1] // 2]
    if list(down.shape) != wanted:
        raise ValueError(f"down has shape {list(down.shape)}, but should be {wanted}")
