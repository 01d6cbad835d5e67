"""Which outputs each engine owes a digest of: what golden/ must have, and what may be missing, by name.

The reference owes every order-free case in every rounding form. Any other engine owes what kernels promise there: the
interpreter all that takes it fewer than MOST_STEPS program-steps, a GPU everything but GIANTS, and the real-valued
cases as well, by every kernel that repeats itself.

Of real-valued cases nothing is kept for the interpreter. It multiplies with numpy, whose sums are in the order that the
CPU's BLAS kernel has (OpenBLAS gives other bits as "Haswell" than as "Prescott"): the digest would be the host's, not
our kernel's.
"""

from dataclasses import dataclass

from ..cases import layers
from ..contract.case import Case
from ..contract.gpu_names import CLASSES
from ..contract.kernel import Kernel
from . import exact, recorded
from .gate_compile import arch_name
from .outcomes import ON_CPU
from .program_steps import plan_of, program_steps

MOST_STEPS = 2000  # about half a minute

# What the rule leaves out today. A test holds these lists to it, so that nothing joins them unseen.
DECODE = "decode_w4a16"
PREFILL = tuple(f"prefill_w4a16{form}" for form in ("", "_words", "_emulated", "_pair", "_table"))
LEFT_TO_GPUS: dict[str, tuple[str, ...]] = {
    "orderfree-e1k1h256i448-t96-random-silu-bf16": (DECODE,),
    "orderfree-e1k1h384i576-t129-random-silu-fp16": (DECODE,),
    "orderfree-e1k1h256i320-t300-random-silu-bf16": (DECODE,),
    "orderfree-e1k1h256i704-t81-random-silu-bf16": (DECODE,),
    "orderfree-e1k1h512i1088-t82-random-silu-fp16": (DECODE,),
    "orderfree-e1k1h256i1472-t83-random-silu-bf16": (DECODE,),
    "orderfree-e1k1h256i1856-t84-random-silu-bf16": (DECODE,),
    "orderfree-e2k2h1024i640-t192-dropped-swigluoai-bf16-limit64.0": (*PREFILL, DECODE),
    "orderfree-e4k2h640i1536-t256-twice-silu-fp16-weight_on_input": (*PREFILL, DECODE),
    "orderfree-e2k1h1024i640-t65-random-silu-bf16": (DECODE,),
    "orderfree-e4k3h1024i640-t33-random-silu-fp16": (*PREFILL, DECODE),
}
GIANTS: tuple[str, ...] = ()  # ids of cases that a small GPU cannot hold: there are none


@dataclass(frozen=True)
class Awaited:
    """`cases` whose digests an engine has still to record, and `kernels` whose real-valued ones it has."""

    cases: tuple[str, ...]
    kernels: tuple[str, ...]

    def covers(self, case: str, kernel: str | None = None) -> bool:
        return case in self.cases or kernel in self.kernels


# What a GPU owes and golden/ lacks, by engine as exact.json names it ("sm_90 triton 3.8.0"). `golden verify` says
# UNTESTED of it there, and a test holds the list to what is missing: a line goes with its recording.
AWAITED: dict[str, Awaited] = {}


@dataclass(frozen=True)
class Task:
    """One output: of `case` by the kernel of that name, or by the reference (None), in a rounding form."""

    case: Case
    rounding: str
    kernel: str | None = None

    def __str__(self) -> str:
        return f"{self.case.id}/{self.rounding}" + (f" by {self.kernel}" if self.kernel else "")


def forms_of(case: Case) -> list[str]:
    """The rounding forms in which `case` has a digest: its format's own, and those of the kernels that take it."""
    from ..kernels.registry import KERNELS

    promises = [kernel.promise for kernel in KERNELS.values()]
    return sorted({case.format} | {promise.orderfree_rounding for promise in promises if promise.takes(case)})


def kernels_for(engine: str, case: Case) -> list[Kernel]:
    """The registered kernels that owe a digest of `case` on `engine`: "interpreter", or one like "sm_90"."""
    from ..kernels.registry import KERNELS

    return [kernel for kernel in KERNELS.values() if _is_due(engine, kernel, case)]


def _is_due(engine: str, kernel: Kernel, case: Case) -> bool:
    promise = kernel.promise
    if not promise.takes(case):
        return False
    if engine == "interpreter":
        return case.inputs == "orderfree" and promise.interpreted and not _takes_long(kernel.name, case)
    there = promise.capabilities is None or engine in map(arch_name, promise.capabilities)
    return there and case.id not in GIANTS and (case.inputs == "orderfree" or promise.repeatable)


def _takes_long(kernel: str, case: Case) -> bool:
    plan = plan_of(kernel, case)
    return plan is not None and program_steps(plan) >= MOST_STEPS


def tasks(engine: str, cases: tuple[Case, ...]) -> list[Task]:
    """All that `engine`, "reference" or as in `kernels_for`, owes of `cases`."""
    if engine == "reference":
        return [Task(case, form) for case in cases if case.inputs == "orderfree" for form in forms_of(case)]
    found = []
    for case in cases:
        for kernel in kernels_for(engine, case):
            promise = kernel.promise
            form = promise.orderfree_rounding if case.inputs == "orderfree" else promise.rounding
            found.append(Task(case, form, kernel.name))
    return found


def due(engine: str, cases: tuple[Case, ...]) -> list[tuple[Case, str]]:
    """The (order-free case, rounding form) that `engine` must give a digest for."""
    pairs = [(task.case, task.rounding) for task in tasks(engine, cases) if task.case.inputs == "orderfree"]
    return list(dict.fromkeys(pairs))


def known_exact() -> set[str]:
    """The keys that golden/exact.json must have, and no others."""
    return {exact.key(*pair) for pair in due("reference", layers.ORDERFREE)}


def known_recorded(engine: str) -> set[str]:
    """The names that a file of golden/recorded/ may have for a GPU like "sm_90", in every speed class."""
    if engine in ON_CPU:
        return set()
    of_cases = [(task.case.id, task.kernel) for task in tasks(engine, layers.RANDOM + layers.LONG)]
    return {recorded.name(*one, speed.name) for one in of_cases for speed in CLASSES}
