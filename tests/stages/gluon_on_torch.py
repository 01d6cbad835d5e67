"""Gluon device functions on torch tensors, a program at a time: which element goes where. Layouts mean nothing here.

For functions without loops over tiles; kernels whose groups of warps work together run in gluon_on_cpu.py.
"""

from types import FunctionType, SimpleNamespace

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.runtime.jit import ConstexprFunction

LAYOUTS = ("SliceLayout", "DotOperandLayout", "DistributedLinearLayout", "BlockedLayout", "NVMMADistributedLayout")
LAYOUTS += ("SwizzledSharedLayout",)
WARPS = 4


class Pointer:
    """To elements of a tensor, counted as if it were flat."""

    def __init__(self, tensor: torch.Tensor, place: torch.Tensor | int = 0):
        self.flat, self.place, self.dtype = tensor.view(-1), place, SimpleNamespace(element_ty=tensor.dtype)

    def __add__(self, elements: torch.Tensor | int) -> "Pointer":
        return Pointer(self.flat, self.place + elements)


class Sums(torch.Tensor):
    """Whose type has a layout, as Gluon's tensors have."""

    type = SimpleNamespace(layout=None)


class Shared:
    """A buffer in shared memory."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor

    def slice(self, start: int, length: int) -> "Shared":
        return Shared(self.tensor[start : start + length])

    def permute(self, order: tuple[int, ...]) -> "Shared":
        return Shared(self.tensor.permute(order))

    def load(self, _layout: object) -> torch.Tensor:
        return self.tensor.clone()

    def store(self, values: torch.Tensor) -> None:
        self.tensor.copy_(values)


def _load(pointer: Pointer, mask: torch.Tensor | bool = True, other: float = 0) -> torch.Tensor:
    mask = torch.as_tensor(mask).expand(torch.as_tensor(pointer.place).shape)
    return torch.where(mask, pointer.flat[torch.where(mask, pointer.place, 0)], other)


def _store(pointer: Pointer, values: torch.Tensor, mask: torch.Tensor) -> None:
    mask = mask.expand(values.shape)
    pointer.flat[pointer.place[mask]] = values[mask]


LANGUAGE = {
    **{name: lambda *_: None for name in LAYOUTS},
    **{name: getattr(torch, name) for name in ("int32", "int64", "float16", "bfloat16", "float32")},
    "float8e4nv": torch.float8_e4m3fn,
    "arange": lambda start, end, _layout: torch.arange(start, end),
    "broadcast": torch.broadcast_tensors,
    "convert_layout": lambda values, _layout, **_: values,
    "full": lambda shape, value, dtype, _layout: torch.full(shape, value, dtype=dtype),
    "load": _load,
    "num_warps": lambda: WARPS,
    "split": lambda values: values.unbind(-1),
    "store": _store,
}


def on_torch(function: GluonJITFunction, **instead: object) -> FunctionType:
    """`function`, which takes tensors, Pointer and Shared; `instead` stands for names of any module, or for gl's."""
    language = SimpleNamespace(**LANGUAGE | {name: instead.pop(name) for name in set(instead) & set(dir(gl))})
    modules: dict[str, dict[str, object]] = {}

    def plain(value: object) -> object:
        if isinstance(value, GluonJITFunction):
            return FunctionType(value.fn.__code__, names_of(value.fn), value.fn.__name__, value.fn.__defaults__)
        if isinstance(value, ConstexprFunction):
            return value.fn
        return value.value if isinstance(value, gl.constexpr) else value

    def names_of(one: FunctionType) -> dict[str, object]:
        if one.__module__ not in modules:
            modules[one.__module__] = names = {}
            names |= {name: plain(value) for name, value in one.__globals__.items()} | {"gl": language, **instead}
        return modules[one.__module__]

    return plain(function)
