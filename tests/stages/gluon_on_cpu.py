"""Gluon kernels of kernels/device on the CPU: what Gluon adds to Triton, in Triton's interpreter, which has none of it.

What a kernel computes with tensors is Triton's own, so the interpreter's; layouts mean nothing here. What groups of
warps do to each other is gluon_groups.py's.
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType, SimpleNamespace

import triton.language as tl
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.runtime.interpreter import GridExecutor
from triton.runtime.jit import ConstexprFunction

from nvfp4_suite.kernels.device.decode import dequantize

from .gluon_groups import POISON, THREADS_PER_WARP, Barrier, Groups, Memory

LAYOUTS = ("BlockedLayout", "DotOperandLayout", "NVMMADistributedLayout", "SliceLayout", "SwizzledSharedLayout")
WARPS = 4  # in each group

tl.block_type.layout = None  # kernels ask a tensor for its own


class Language:
    """Gluon's language, of which most is Triton's: looked up at each use, because the interpreter replaces it."""

    allocate_shared_memory = staticmethod(Memory.allocated)
    static_range = range

    def __init__(self, groups: Groups):
        self.groups = groups

    def __getattr__(self, name: str):
        return (lambda *_: None) if name in LAYOUTS else getattr(tl, name)

    def arange(self, start: int, end: int, _layout: object) -> tl.tensor:
        return tl.arange(start, end)

    def zeros(self, shape: Sequence[int], dtype: tl.dtype, _layout: object) -> tl.tensor:
        return tl.zeros(shape, dtype)

    def warp_specialize(self, partitions: Sequence[tuple[Callable, tuple]], warps: Sequence[int]) -> None:
        assert list(warps) == [WARPS] * (len(partitions) - 1)
        self.groups.run([partial(function, *arguments) for function, arguments in partitions])


class Copies:
    """Asynchronous copies, of the one group that makes any, and the barrier that is told when they are done."""

    def __init__(self, groups: Groups):
        self.groups, self.begun = groups, []

    def async_load(self, memory: Memory, pointer: tl.tensor, mask: tl.tensor) -> None:
        memory.data.fill(POISON)
        zero = 0.0 if memory.dtype.is_floating() else 0
        self.begun.append((memory, tl.load(pointer, mask=mask, other=zero)))

    def mbarrier_arrive(self, barrier: Barrier, increment_count: bool) -> None:
        assert not increment_count
        begun, self.begun = self.begun, []

        def finish() -> None:
            for memory, value in begun:
                memory.data[...] = value.handle.data
            barrier.arrive(WARPS * THREADS_PER_WARP)

        self.groups.copies.append(finish)
        if not self.groups.late:
            self.groups.copies.pop()()
        self.groups.wait()


def barriers(groups: Groups) -> SimpleNamespace:
    """What Gluon calls mbarrier."""

    def allocated(batch: int | None = None):
        made = [Barrier(groups) for _ in range(batch or 1)]
        return SimpleNamespace(index=lambda at: made[int(at)]) if batch else made[0]

    def arrive(barrier: Barrier) -> None:
        barrier.arrive()
        groups.wait()

    return SimpleNamespace(
        allocate_mbarrier=allocated,
        init=lambda barrier, count: barrier.init(count),
        wait=lambda barrier, phase: barrier.wait(int(phase)),
        arrive=arrive,
    )


def multiply_decoded(a, a_scale, b, b_scale, acc):
    """What stands for the FP4 instruction: of operands decoded to fp16, exactly."""
    left, right = (dequantize(*operand, tl.float16, NAN=True) for operand in ((a, a_scale), (b.T, b_scale)))
    return tl.dot(left, right.T, acc, input_precision="ieee")


class Kernel:
    """Stands for a Gluon kernel: `kernel[grid](...)` runs its programs one after the other, each as Groups."""

    def __init__(self, kernel: GluonJITFunction, order: Sequence[int], late: bool):
        groups = Groups(order, late)
        mine = {"gl": Language(groups), "mbarrier": barriers(groups), "async_copy": Copies(groups)}
        self._mine = mine | {"multiply_blocks": multiply_decoded, "tl": tl}
        self._modules: dict[int, dict[str, object]] = {}
        self.function = self._on_cpu(kernel)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable:
        names = self.function.__code__.co_varnames[: self.function.__code__.co_argcount]
        return GridExecutor(self.function, names, grid)

    def _on_cpu(self, function: GluonJITFunction) -> FunctionType:
        plain = function.fn
        made = FunctionType(plain.__code__, self._names(plain.__globals__), plain.__name__, plain.__defaults__)
        made.__annotations__ = plain.__annotations__
        return made

    def _names(self, module: dict[str, object]) -> dict[str, object]:
        """The names of a module, with what stands for Gluon's."""
        if id(module) not in self._modules:
            names = self._modules[id(module)] = dict(module)
            names |= {name: self._replaced(value) for name, value in module.items()}
            names |= self._mine
        return self._modules[id(module)]

    def _replaced(self, value: object) -> object:
        if isinstance(value, GluonJITFunction):
            return self._on_cpu(value)
        if isinstance(value, ConstexprFunction):
            return value.fn
        return value.value if isinstance(value, gl.constexpr) else value
