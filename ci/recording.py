"""Digests of the order-free cases as an engine computes them: the reference, the interpreter or this host's GPU.

An engine runs in a fresh process, because a process either interprets kernels or compiles them. Every output is judged
before it becomes a digest: the inputs are proved order-free, and a kernel's output equals the reference bit for bit.
"""

import hashlib
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING

from ..contract.case import Case, Inputs, torch_dtype
from ..contract.gpus import current
from ..contract.kernel import Kernel, Promise
from .environment import code_changing
from .exact import Outcome, Refused, key
from .gate_compile import arch_name
from .provenance import provenance

if TYPE_CHECKING:
    from torch import Tensor

ENGINES = ("reference", "interpreter", "gpu")


@dataclass(frozen=True)
class Run:
    """One process's outcomes by key. `engine` is the resolved name: "reference", "interpreter" or one like "sm_90"."""

    engine: str
    provenance: dict[str, str]
    outcomes: dict[str, Outcome]


def digest(tensor: "Tensor") -> str:
    """SHA-256, in hexadecimal, of `tensor`: a header line in ASCII, then every element.

    The header is torch's dtype name, a space, the sizes joined by "x" and a newline, such as "bfloat16 5x48\\n". The
    elements follow in row-major order, each as its little-endian bytes, without padding.
    """
    import torch

    header = f"{str(tensor.dtype).removeprefix('torch.')} {'x'.join(map(str, tensor.shape))}\n"
    size = tensor.dtype.itemsize
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    elements = tensor.cpu().contiguous().view(integers).numpy().astype(f"<i{size}")
    return hashlib.sha256(header.encode() + elements.tobytes()).hexdigest()


def forms_of(case: Case) -> list[str]:
    """The rounding forms in which `case` has a digest: its format's own, and those of the kernels that take it."""
    from ..kernels.registry import KERNELS

    promises = [kernel.promise for kernel in KERNELS.values()]
    return sorted({case.format} | {promise.orderfree_rounding for promise in promises if promise.takes(case)})


def kernels_for(engine: str, case: Case, rounding: str) -> list[Kernel]:
    """The registered kernels that are held to `case` in that `rounding` form on `engine` ("interpreter", "sm_90")."""
    from ..kernels.registry import KERNELS

    def promised(promise: Promise) -> bool:
        on_gpu = promise.capabilities is None or engine in map(arch_name, promise.capabilities)
        runs_there = promise.interpreted if engine == "interpreter" else on_gpu
        return promise.takes(case) and promise.orderfree_rounding == rounding and runs_there

    return [kernel for kernel in KERNELS.values() if promised(kernel.promise)]


def due(engine: str, cases: tuple[Case, ...]) -> list[tuple[Case, str]]:
    """The (case, rounding form) that `engine` must give a digest for.

    The reference: all. Others: those that some kernel promises there; the interpreter leaves out the tier "all", whose
    cases would take it minutes each.
    """
    pairs = [(case, rounding) for case in cases for rounding in forms_of(case)]
    if engine == "reference":
        return pairs
    if engine == "interpreter":
        pairs = [(case, rounding) for case, rounding in pairs if case.tier != "all"]
    return [(case, rounding) for case, rounding in pairs if kernels_for(engine, case, rounding)]


def layer_output(kernel: Kernel, inputs: Inputs, case: Case) -> "Tensor":
    """What `kernel` makes of `inputs`, on their device: [T, H] in the case's dtype."""
    prepared = kernel.prepare(inputs.banks)
    return kernel.run(prepared, inputs.hidden_states, inputs.topk_weights, inputs.topk_ids, **case.options)


def reference_output(inputs: Inputs, case: Case, rounding: str) -> "Tensor":
    """The right answer in that `rounding` form: [T, H] in the case's dtype, on the CPU."""
    from ..reference.moe import expert_layer

    tensors = (inputs.hidden_states, inputs.banks, inputs.topk_weights, inputs.topk_ids)
    return expert_layer(*tensors, rounding=rounding, **case.options).to(torch_dtype(case.dtype))


def outcome(engine: str, case: Case, rounding: str) -> Outcome:
    """`case` on `engine`, judged; whatever goes wrong is the outcome's problem, so that one case cannot hide others."""
    try:
        return Outcome(digest=_judged_digest(engine, case, rounding))
    except Exception as error:
        return Outcome(problem=f"{type(error).__name__}: {error}")


def _judged_digest(engine: str, case: Case, rounding: str) -> str:
    from ..reference.draws.layer import draw
    from ..reference.judge import bitwise, context_of
    from ..reference.orderfree import prove

    inputs = draw(case)
    prove(inputs, case)
    expected = reference_output(inputs, case, rounding)
    outputs = {"reference": expected}
    if engine != "reference":
        on_device = inputs.to("cpu" if engine == "interpreter" else "cuda")
        kernels = kernels_for(engine, case, rounding)
        outputs = {kernel.name: layer_output(kernel, on_device, case).cpu() for kernel in kernels}
    for name, actual in outputs.items():  # the reference too: an output of zeros is refused
        bitwise(actual, expected, **context_of(case), kernel=name, engine=engine)
    (found,) = {digest(actual) for actual in outputs.values()}
    return found


def run(engine: str, cases: tuple[Case, ...]) -> Run:
    """The outcomes of all that is due on `engine`, one of ENGINES, in this process; says on stderr how far it is."""
    name = _start(engine)
    facts = provenance(name)
    print(f"{name}: {', '.join(f'{what} {value}' for what, value in facts.items())}", file=sys.stderr)
    outcomes, pairs = {}, due(name, cases)
    for place, (case, rounding) in enumerate(pairs, 1):
        print(f"[{place}/{len(pairs)}] {key(case, rounding)}", end=" ", file=sys.stderr, flush=True)
        start = time.perf_counter()
        outcomes[key(case, rounding)] = found = outcome(name, case, rounding)
        print("FAILED" if found.problem else "ok", f"{time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
    return Run(name, facts, outcomes)


def _start(engine: str) -> str:
    """Makes this process one of `engine` and returns its resolved name."""
    if engine == "interpreter":
        os.environ["TRITON_INTERPRET"] = "1"
        from . import interpreter  # noqa: F401  (importing it repairs Triton's interpreter)
    if engine != "gpu":
        return engine
    if variable := code_changing():
        raise Refused(f"{variable} is set, but should be unset for the engine gpu: other code would run")
    import torch

    if not torch.cuda.is_available():
        raise Refused(f"the engine gpu needs a CUDA GPU, but torch {torch.__version__} sees none on this host")
    return arch_name(current(0).capability)


def run_in_fresh_process(engine: str, cases: tuple[Case, ...]) -> Run:
    """`run` in a new process with an empty Triton cache. Raises Refused if the process dies."""
    with (
        tempfile.TemporaryDirectory(prefix="triton-cache-", ignore_cleanup_errors=True) as cache,
        ProcessPoolExecutor(1, get_context("spawn"), initializer=_use_cache, initargs=(cache,)) as pool,
    ):
        try:
            return pool.submit(run, engine, cases).result()
        except BrokenProcessPool as error:
            raise Refused(f"the process of engine {engine} died in the case that it named last") from error


def _use_cache(directory: str) -> None:
    os.environ["TRITON_CACHE_DIR"] = directory
