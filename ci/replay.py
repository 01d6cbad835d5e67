"""Runs a bundle's case again: the same inputs, the same kernel, judged in the same way, on this machine's engine."""

import os
from collections.abc import Iterator
from pathlib import Path

from ..contract.kernel import Kernel
from . import bundle, host
from .bundle import Bundle
from .environment import code_changing

ENGINES = ("gpu", "interpreter")


def replay(path: Path, engine: str | None = None) -> int:
    """Prints what the failure was, what differs here, and what comes out. 1: it is wrong here too; 0: it is right.

    `engine` is one of ENGINES, None for the GPU where there is one. Raises ValueError for what is no bundle.
    """
    given = bundle.read(path)
    device = _start(engine)
    print(f"{given.test}\ncase {given.case.id}, kernel {given.kernel or 'not named'}\n\n{given.failure}\n")
    print(*[f"environment: {line}" for line in host.differences(given.environment, _environment(device))], sep="\n")
    wrong = 0
    for kernel in _kernels(given):
        problem = _problem(given, kernel, device)
        wrong += problem is not None
        print(f"{kernel.name}: {problem or 'right here'}")
    return 1 if wrong else 0


def _start(engine: str | None) -> str:
    """Makes this process one of the engine; the device that its tensors are on."""
    if engine is None:
        import torch

        engine = "gpu" if torch.cuda.is_available() else "interpreter"
    if variable := code_changing(*(["TRITON_INTERPRET"] if engine == "interpreter" else [])):
        raise ValueError(f"{variable} is set, but should be unset: other code would run")
    if engine == "gpu":
        return "cuda"
    os.environ["TRITON_INTERPRET"] = "1"
    from . import interpreter  # noqa: F401  (importing it repairs Triton's interpreter)

    return "cpu"


def _environment(device: str) -> dict:
    from . import gpus

    return host.report([one.device for one in gpus.mine()[:1]] if device == "cuda" else [])


def _kernels(given: Bundle) -> Iterator[Kernel]:
    """The bundle's kernel; all that take its case where it names none."""
    from ..kernels.registry import KERNELS

    if given.kernel and given.kernel not in KERNELS:
        raise ValueError(f"the kernel {given.kernel!r} is not registered here, but {', '.join(KERNELS)} are")
    for kernel in KERNELS.values():
        if kernel.name == given.kernel or (given.kernel is None and kernel.promise.takes(given.case)):
            yield kernel


def _problem(given: Bundle, kernel: Kernel, device: str) -> str | None:
    """What the judges say of the output of `kernel` on the bundle's inputs; None where it is right."""
    from ..reference import bounds, judge
    from .recording import layer_output, reference_output

    inputs, case = given.inputs or bundle.inputs_of(given.case), given.case
    context = judge.context_of(case) | {"kernel": kernel.name}
    try:
        actual = layer_output(kernel, inputs.to(device), case).cpu()
        if case.inputs == "orderfree":
            judge.bitwise(actual, reference_output(inputs, case, kernel.promise.orderfree_rounding), **context)
        else:
            tensors = (inputs.hidden_states, inputs.banks, inputs.topk_weights, inputs.topk_ids)
            judge.bounded(actual, bounds.enclose(*tensors, rounding=kernel.promise.rounding, **case.options), **context)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
