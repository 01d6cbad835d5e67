"""Compiles one launch for one architecture and reads off what came out. Needs Triton, but neither torch nor a GPU."""

import os
import re
import subprocess
import tempfile
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread

from ..kernels.launch import Launch, device_function
from .environment import code_changing

Capability = tuple[int, int]

# Groups: the kind and the rest of its name, which holds shape and types. PTX ISA: wgmma, tcgen05.mma and mma.sync.
_MATRIX = re.compile(r"\b(?:(wgmma)\.mma_async\.sync\.aligned|(tcgen05)\.mma|(mma\.sync)\.aligned)\.(\S+)")
_USAGE = re.compile(r"\bREG:(\d+) STACK:(\d+)")


class GateError(AssertionError):
    """A launch does not become the binary that it should: which launch, on which architecture, what was wrong."""


@dataclass(frozen=True)
class Facts:
    """What the compiler made of one launch. Sizes are in bytes, `registers` and `stack_bytes` per thread.

    `instructions` are the distinct matrix instructions of the PTX ("wgmma m64n64k16.f32.bf16.bf16"), `target` is its
    architecture ("sm_90a"). Registers that do not fit are spilled to the stack. `assembler` is the ptxas that was used.
    """

    cubin_bytes: int
    shared_bytes: int
    registers: int
    stack_bytes: int
    instructions: tuple[str, ...]
    target: str
    triton: str
    assembler: str


def arch_name(capability: Capability) -> str:
    return "sm_{}{}".format(*capability)


def compile_launch(launch: Launch, capability: Capability) -> Facts:
    """The facts of `launch`, compiled for `capability` in this process; raises what `compiled` raises."""
    return _facts(compiled(launch, capability), 10 * capability[0] + capability[1])


def compiled(launch: Launch, capability: Capability):
    """Triton's compiled kernel of `launch` for `capability`; an assertion inside the compiler can end this process.

    Raises GateError if the environment changes what is compiled, if the launch does not fit its function, or with the
    compiler's last line if it does not compile.
    """
    if name := code_changing():
        raise GateError(f"{name} is set and changes what is compiled, but should not be")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = device_function(launch)
    _check_arguments(launch, function)
    signature = dict(launch.arguments) | {name: "constexpr" for name, _ in launch.constexprs}
    places = {name: (place,) for place, name in enumerate(function.arg_names)}
    constants = {places[name]: value for name, value in launch.constexprs}
    attributes = {places[name]: [["tt.divisibility", 16]] for name in launch.divisible}
    if function.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource as ASTSource
    source = ASTSource(function, {name: signature[name] for name in function.arg_names}, constants, attributes)
    target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages, "enable_fp_fusion": launch.fp_fusion}
    try:
        return triton.compile(source, target=target, options=options)
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("Repro command")]
        last = lines[-1].strip() if lines else type(error).__name__
        raise GateError(f"{launch.label} on {arch_name(capability)} does not compile, but should: {last}") from error


def _check_arguments(launch: Launch, function) -> None:
    """The launch names exactly the function's parameters, and the JIT would specialize what the launch declares."""
    names = [name for name, _ in launch.arguments] + [name for name, _ in launch.constexprs]
    if names != function.arg_names:
        should = ", ".join(function.arg_names)
        raise GateError(f"{launch.label}: the arguments are {', '.join(names)}, but {launch.kernel} takes {should}")
    if unknown := set(launch.divisible) - dict(launch.arguments).keys():
        raise GateError(f"{launch.label}: divisible names {', '.join(sorted(unknown))}, but should name arguments only")
    fixed = {parameter.name for parameter in function.params if parameter.do_not_specialize}
    for name, kind in launch.arguments:
        if kind.startswith("i") and (name in fixed) == (name in launch.divisible):
            one = "declared divisible and in" if name in fixed else "neither declared divisible nor in"
            raise GateError(f"{launch.label}: {name} is {one} do_not_specialize, but should be exactly one of the two")


def _facts(compiled, arch: int) -> Facts:
    from triton.backends.nvidia.compiler import get_ptxas

    cubin, ptx, assembler = compiled.asm["cubin"], compiled.asm["ptx"], get_ptxas(arch)
    registers, stack_bytes = _usage(cubin)
    found = [[part for part in match if part] for match in _MATRIX.findall(ptx)]
    return Facts(
        cubin_bytes=len(cubin),
        shared_bytes=compiled.metadata.shared,
        registers=registers,
        stack_bytes=stack_bytes,
        instructions=tuple(sorted({f"{kind} {form}" for kind, form in found})),
        target=re.search(r"^\.target (\w+)", ptx, re.MULTILINE)[1],
        triton=compiled.metadata.triton_version,
        assembler=f"{_origin(assembler.path)} {assembler.version}",
    )


def _origin(tool: str) -> str:
    """The name of a tool that Triton ships, the whole path of any other."""
    import triton

    bundled = Path(tool).is_relative_to(Path(triton.__file__).parent)
    return Path(tool).name if bundled else tool


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers and stack bytes per thread of a cubin with one kernel."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    registers, stack_bytes = _USAGE.search(text).groups()
    return int(registers), int(stack_bytes)


_child: ProcessPoolExecutor | None = None


def compile_in_child(launch: Launch, capability: Capability) -> Facts:
    """`compile_launch` in a child process, so that an assertion inside the compiler is a GateError too.

    The child stays for the next launch (importing Triton takes longer than compiling a small kernel) and ends with
    this process. Under pytest-xdist every worker has its own; without xdist a crash still costs one test only.
    """
    global _child
    if _child is None:
        _child = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_end_with_parent)
    try:
        return _child.submit(compile_launch, launch, capability).result()
    except BrokenProcessPool as error:
        _child = None
        where = f"{launch.label} on {arch_name(capability)}"
        raise GateError(f"{where}: the compiler ended its process, but should compile; it may have said why") from error


def _end_with_parent() -> None:
    """A parent that is killed cannot stop its child; the child watches it instead."""
    Thread(target=lambda: (parent_process().join(), os._exit(1)), daemon=True).start()
