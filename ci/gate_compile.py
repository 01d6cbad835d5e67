"""Compiles one launch for some architectures and reads off what came out. Needs Triton, but neither torch nor a GPU.

Some architectures get the same PTX from Triton, but for the name of the target (FAMILIES). There, `compile_family` may
let Triton make it once and assemble it for each: whether it is still the same, a run of the gates finds out first, with
one launch of every kernel that it compiles for each architecture as a whole.
"""

import contextlib
import io
import os
import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread

from ..kernels.launch import Launch, device_function
from . import gate_folders
from .environment import code_changing
from .gate_facts import Capability, Facts, GateError, facts_of
from .gate_said import Said, excerpt, keep_aside

FAMILIES: tuple[tuple[Capability, ...], ...] = (
    ((8, 0),),  # apart from sm_86: Triton turns off a pass of LLVM for it
    ((8, 6), (8, 7)),
    ((8, 9),),
    ((9, 0),),
    ((10, 0), (10, 3), (11, 0)),
    ((12, 0), (12, 1)),
)


def arch_name(capability: Capability) -> str:
    return "sm_{}{}".format(*capability)


@dataclass(frozen=True)
class Binary:
    """What Triton made of a launch for one architecture: `head` is that of its PTX if it is another's."""

    ttir: str
    ptx: str
    cubin: bytes
    shared_bytes: int
    head: str = ""


def compile_launch(launch: Launch, capability: Capability) -> Facts:
    """The facts of `launch`, compiled for `capability` in this process; raises what `compiled` raises."""
    return facts_of_binary(binary_of(launch, capability), capability)


def binary_of(launch: Launch, capability: Capability) -> Binary:
    made = compiled(launch, capability)
    ttir = made.asm.get("ttir", "")  # Gluon has no such stage
    return Binary(ttir, made.asm["ptx"], made.asm["cubin"], made.metadata.shared)


def facts_of_binary(binary: Binary, capability: Capability) -> Facts:
    from triton import __version__

    tools = {"triton": __version__, "assembler": assembler(capability), "head": binary.head}
    return facts_of(binary.ttir, binary.ptx, binary.cubin, binary.shared_bytes, **tools)


def compiled(launch: Launch, capability: Capability):
    """Triton's compiled kernel of `launch` for `capability`; an assertion inside the compiler can end this process.

    Raises GateError if the environment changes what is compiled, if the launch does not fit its function, or with the
    compiler's last line if it does not compile.
    """
    from triton.backends.compiler import GPUTarget

    return compiled_for(launch, GPUTarget("cuda", 10 * capability[0] + capability[1], 32), arch_name(capability))


def compiled_for(launch: Launch, target, name: str):
    """Triton's compiled kernel of `launch` for `target`, which messages call `name`. Triton's own cache has no part."""
    if variable := code_changing():
        raise GateError(f"{variable} is set and changes what is compiled, but should not be")
    import triton

    source = _source(launch)
    try:
        with _own_files(), contextlib.redirect_stdout(io.StringIO()):  # where ptxas fails, Triton prints all of the PTX
            return triton.compile(source, target=target, options=_options(launch))
    except Exception as error:
        raise GateError(f"{launch.label} on {name} does not compile, but should: {_last_line(error)}") from error


def retargeted(ptx: str, capability: Capability) -> str:
    """`ptx` for another architecture of its family."""
    from triton.backends.nvidia.compiler import sm_arch_from_capability

    name = sm_arch_from_capability(10 * capability[0] + capability[1])
    return re.sub(r"^\.target \w+", f".target {name}", ptx, count=1, flags=re.MULTILINE)


def assembled(launch: Launch, head: Binary, head_capability: Capability, capability: Capability) -> Binary:
    """The PTX of `head`, assembled for `capability` with Triton's own options. Raises GateError if ptxas fails."""
    from triton.backends.compiler import GPUTarget, Language
    from triton.compiler import make_backend

    backend = make_backend(GPUTarget("cuda", 10 * capability[0] + capability[1], 32))
    stages, ptx = {}, retargeted(head.ptx, capability)
    backend.add_stages(stages, backend.parse_options(_options(launch)), Language.TRITON)
    try:
        with _own_files(), contextlib.redirect_stdout(io.StringIO()):
            cubin = stages["cubin"](ptx, {})
    except Exception as error:
        text = f"{launch.label} on {arch_name(capability)} does not compile, but should: {_last_line(error)}"
        raise GateError(text) from error
    return Binary(head.ttir, ptx, cubin, head.shared_bytes, arch_name(head_capability))


def _source(launch: Launch):
    from triton.compiler import ASTSource

    function = device_function(launch)
    _check_arguments(launch, function)
    signature = dict(launch.arguments) | {name: "constexpr" for name, _ in launch.constexprs}
    places = {name: (place,) for place, name in enumerate(function.arg_names)}
    constants = {places[name]: value for name, value in launch.constexprs}
    attributes = {places[name]: [["tt.divisibility", 16]] for name in launch.divisible}
    if function.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource as ASTSource
    return ASTSource(function, {name: signature[name] for name in function.arg_names}, constants, attributes)


def _options(launch: Launch) -> dict:
    return {"num_warps": launch.num_warps, "num_stages": launch.num_stages, "enable_fp_fusion": launch.fp_fusion}


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


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("Repro command")]
    return lines[-1].strip() if lines else type(error).__name__


@contextlib.contextmanager
def _own_files() -> Iterator[None]:
    """A folder for one compilation: Triton keeps every stage, half a megabyte of them, and gives ptxas files."""
    before = os.environ.get("TRITON_CACHE_DIR"), tempfile.tempdir
    with gate_folders.folder() as path:
        os.environ["TRITON_CACHE_DIR"] = tempfile.tempdir = str(path)
        try:
            yield
        finally:
            os.environ.pop("TRITON_CACHE_DIR")
            if before[0] is not None:
                os.environ["TRITON_CACHE_DIR"] = before[0]
            tempfile.tempdir = before[1]


def assembler(capability: Capability) -> str:
    """The ptxas that Triton uses for `capability`: its name if Triton ships it, its path if not, and its version."""
    import triton
    from triton.backends.nvidia.compiler import get_ptxas

    tool = get_ptxas(10 * capability[0] + capability[1])
    bundled = Path(tool.path).is_relative_to(Path(triton.__file__).parent)
    return f"{Path(tool.path).name if bundled else tool.path} {tool.version}"


class Child:
    """A child process that calls functions, so that an assertion inside the compiler is a GateError too.

    It stays for the next call, as importing Triton takes longer than compiling a small kernel, and ends with its
    parent. After a crash the next call gets another. What the compiler says is kept aside: see `said`.
    """

    def __init__(self):
        self._pool: ProcessPoolExecutor | None = None
        self._files = contextlib.ExitStack()
        self._log, self._heard, self._said = Said(), 0, ""

    def call(self, where: str, function, *arguments):
        if self._pool is None:
            self._start()
        self._heard = self._log.length()
        try:
            return self._pool.submit(function, *arguments).result()
        except BrokenProcessPool as error:
            self._said = self._log.since(self._heard)
            self.close()
            wrong = GateError(f"{where}: the compiler ended its process, but should compile")
            wrong.add_note("\n".join(excerpt(self._said)))
            raise wrong from error

    def said(self) -> str:
        """What the compiler said in the call that last ended the process."""
        return self._said

    def _start(self) -> None:
        self._log = Said(self._files.enter_context(gate_folders.folder()) / "said")
        options = {"mp_context": get_context("spawn"), "initializer": _start_child, "initargs": (self._log.path,)}
        self._pool = ProcessPoolExecutor(1, **options)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._files.close()


_child = Child()


def compile_in_child(launch: Launch, capability: Capability) -> Facts:
    """`compile_launch` in a child process. Under pytest-xdist every worker has its own."""
    return _child.call(f"{launch.label} on {arch_name(capability)}", compile_launch, launch, capability)


def _start_child(log: Path) -> None:
    keep_aside(log)
    _end_with_parent()


def _end_with_parent() -> None:
    """A parent that is killed cannot stop its child; the child watches it instead."""
    Thread(target=lambda: (parent_process().join(), os._exit(1)), daemon=True).start()
