"""Launch: everything that decides which binary runs, as data. Pure until a launch is started."""

import importlib
from dataclasses import dataclass, replace
from functools import cache


@dataclass(frozen=True)
class Launch:
    """One kernel launch of a plan; `experts.run` runs it and the compile gates compile it, from the same fields.

    `stage` is its place in the layer. `kernel` is "module.function" in kernels.device. `arguments` are the run-time
    arguments in order, each with its Triton type ("*bf16", "*u8", "*fp8e4nv", "*i32", "i32", "fp32"); `divisible` names
    those that are declared divisible by 16 (addresses or values). `instruction` is the matrix instruction that must
    come out of the compiler on the GPU this was planned for, perhaps with a part of its name ("mma.sync
    kind::mxf4nvf4"), None where the kernel has no dot.
    """

    stage: str
    kernel: str
    arguments: tuple[tuple[str, str], ...]
    divisible: tuple[str, ...]
    constexprs: tuple[tuple[str, object], ...]
    num_warps: int = 4
    num_stages: int = 1
    instruction: str | None = None
    fp_fusion: bool = False

    def constexpr(self, name: str):
        return dict(self.constexprs)[name]

    @property
    def binary(self) -> "Launch":
        """Itself without what decides nothing of its binary; launches with equal ones run the same."""
        return replace(self, stage="", instruction=None)

    @property
    def label(self) -> str:
        """Short and readable: "gate_up BLOCK_M=64 BLOCK_N=64 ... 4 warps 3 stages"."""
        constants = " ".join(f"{name}={value}" for name, value in self.constexprs)
        return f"{self.stage} {constants} {self.num_warps} warps {self.num_stages} stages"


def device_function(launch: Launch):
    """The Triton function that `launch` names; imports triton."""
    module, name = launch.kernel.rsplit(".", 1)
    return getattr(importlib.import_module(f".device.{module}", __package__), name)


def declare(stage: str, kernel: str, arguments: str, divisible: str, constexprs: dict, **rest) -> Launch:
    """A Launch whose `arguments` read "name: type, name: type"; `divisible` names integers, separated by spaces.

    Every pointer is 16-byte aligned, so is declared divisible.
    """
    return Launch(stage, kernel, *_declared(arguments, divisible), tuple(constexprs.items()), **rest)


@cache
def _declared(arguments: str, divisible: str) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """The fields `arguments` and `divisible` of a Launch: plans declare thousands of launches in few ways."""
    typed = tuple(tuple(part.split(": ")) for part in arguments.split(", "))
    return typed, tuple(name for name, kind in typed if kind.startswith("*") or name in divisible.split())


def start(launch: Launch, grid: tuple[int, ...], **arguments):
    """Starts `launch` on `arguments`, by name; raises TypeError for one that it does not take. The compiled binary."""
    ordered = [arguments.pop(name) for name, _ in launch.arguments]
    if arguments:
        raise TypeError(f"{launch.stage} does not take {', '.join(arguments)}")
    return device_function(launch)[grid](*ordered, **_options(launch))


def compile_only(launch: Launch):
    """Compiles `launch` for this process's GPU, as `start` would, and runs nothing. The compiled binary."""
    arguments = [_stand_in(kind, name in launch.divisible) for name, kind in launch.arguments]
    return device_function(launch).warmup(*arguments, grid=(1,), **_options(launch))


def _options(launch: Launch) -> dict:
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages, "enable_fp_fusion": launch.fp_fusion}
    return {**dict(launch.constexprs), **options}


_DTYPES = {  # of what pointers point to
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp8e4nv": "float8_e4m3fn",
    "i32": "int32",
    "u8": "uint8",
}


def _stand_in(kind: str, divisible: bool):
    """What Triton takes for any argument of a type: for a pointer its torch dtype, and aligned."""
    import torch

    if kind.startswith("*"):
        return getattr(torch, _DTYPES[kind[1:]])
    return 0.5 if kind == "fp32" else 16 if divisible else 3
