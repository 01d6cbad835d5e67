"""ExpertBanks: the tensors of one expert layer, validated on construction."""

from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING

from .shapes import LayerShape

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class ExpertBanks:
    """One layer's NVFP4 experts: W[n, k] = e2m1(code) * scale[n, k // 16] * global[n].

    With E experts, H hidden, I intermediate (gate rows first, then up rows), low nibble = even k:
    `gate_up_packed` u8 [E, 2I, H/2], `gate_up_scale` e4m3 [E, 2I, H/16], `gate_up_global` f32 [E, 2I],
    `down_packed` u8 [E, H, I/2], `down_scale` e4m3 [E, H, I/16], `down_global` f32 [E, H]. The optional static input
    scales are multipliers, f32 [E], both or neither. All are contiguous, 16-byte aligned and on one device.

    Raises TypeError for a wrong dtype, ValueError for a wrong shape, device or layout, or for one input scale without
    the other; both name the field.
    """

    gate_up_packed: "Tensor"
    gate_up_scale: "Tensor"
    gate_up_global: "Tensor"
    down_packed: "Tensor"
    down_scale: "Tensor"
    down_global: "Tensor"
    gate_up_input_scale: "Tensor | None" = None
    down_input_scale: "Tensor | None" = None

    def __post_init__(self) -> None:
        if (self.gate_up_input_scale is None) != (self.down_input_scale is None):
            missing = "down" if self.down_input_scale is None else "gate_up"
            raise ValueError(f"{missing}_input_scale is None, but should be given: the other input scale is")
        _check_dtypes(self)
        _check_shapes(self)
        check_layout(self.tensors())

    @property
    def experts(self) -> int:
        return self.gate_up_packed.shape[0]

    @property
    def hidden(self) -> int:
        return self.down_packed.shape[1]

    @property
    def intermediate(self) -> int:
        return self.gate_up_packed.shape[1] // 2

    @property
    def device(self):
        return self.gate_up_packed.device

    @property
    def formats(self) -> tuple[str, ...]:
        """What a kernel must take to serve them, best first, as in `Promise.formats`."""
        return ("w4a16",) if self.gate_up_input_scale is None else ("w4a4", "w4a16")

    def layer_shape(self, top_k: int) -> LayerShape:
        return LayerShape(self.experts, top_k, self.hidden, self.intermediate)

    def to(self, device) -> "ExpertBanks":
        """The same banks on `device`."""
        return type(self)(**{name: tensor.to(device) for name, tensor in self.tensors()})

    def without_input_scales(self) -> "ExpertBanks":
        """The same banks for kernels that leave the activations alone."""
        return replace(self, gate_up_input_scale=None, down_input_scale=None)

    def tensors(self) -> list[tuple[str, "Tensor"]]:
        """The required fields, and the optional ones that are there, by name."""
        values = [(f, getattr(self, f.name)) for f in fields(self)]
        return [(f.name, value) for f, value in values if value is not None or f.default is MISSING]


def _check_dtypes(banks: ExpertBanks) -> None:
    import torch

    by_suffix = {
        "packed": torch.uint8,
        "input_scale": torch.float32,
        "global": torch.float32,
        "scale": torch.float8_e4m3fn,
    }
    for name, tensor in banks.tensors():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}, but should be a torch.Tensor")
        wanted = next(dtype for suffix, dtype in by_suffix.items() if name.endswith(suffix))
        if tensor.dtype != wanted:
            raise TypeError(f"{name} is {tensor.dtype}, but should be {wanted}")


def _check_shapes(banks: ExpertBanks) -> None:
    for name in ("gate_up_packed", "down_packed"):
        if getattr(banks, name).dim() != 3:
            raise ValueError(f"{name} has shape {_shape(getattr(banks, name))}, but should be [experts, rows, K/2]")
    experts, rows, half_hidden = banks.gate_up_packed.shape
    hidden, intermediate = 2 * half_hidden, rows // 2
    if not experts:
        raise ValueError("gate_up_packed has no expert")
    for name, value in (
        ("hidden (gate_up_packed's K)", hidden),
        ("intermediate (half of gate_up_packed's rows)", rows / 2),
    ):
        if value % 16 or not value:
            raise ValueError(f"{name} is {value}, but should be a positive multiple of 16")
    wanted = {
        "gate_up_packed": (experts, 2 * intermediate, hidden // 2),
        "gate_up_scale": (experts, 2 * intermediate, hidden // 16),
        "gate_up_global": (experts, 2 * intermediate),
        "down_packed": (experts, hidden, intermediate // 2),
        "down_scale": (experts, hidden, intermediate // 16),
        "down_global": (experts, hidden),
        "gate_up_input_scale": (experts,),
        "down_input_scale": (experts,),
    }
    for name, tensor in banks.tensors():
        if tuple(tensor.shape) != wanted[name]:
            raise ValueError(f"{name} has shape {_shape(tensor)}, but should be {list(wanted[name])}")


def check_layout(tensors: list[tuple[str, "Tensor"]]) -> None:
    """All on the device of the first, contiguous and 16-byte aligned; ValueError names the one that is not."""
    first, device = tensors[0][0], tensors[0][1].device
    for name, tensor in tensors:
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}, but should be on {device} like {first}")
        if not tensor.is_contiguous():
            raise ValueError(f"{name} has strides {list(tensor.stride())}, but should be contiguous")
        if tensor.data_ptr() % 16:
            raise ValueError(
                f"{name} starts at {tensor.data_ptr() % 16} bytes past a multiple of 16, but should be 16-byte aligned"
            )


def _shape(tensor: "Tensor") -> list[int]:
    return list(tensor.shape)
