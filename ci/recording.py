"""Digests as an engine computes them: the reference, the interpreter or this host's GPUs. Every output is judged first.

Order-free inputs are proved so, and a kernel's output then equals the reference bit for bit; of other inputs it lies
within the bound of the reference. An engine runs in processes of its own (golden_work.py), because a process either
interprets kernels or compiles them.
"""

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..contract.case import Case, Inputs, random_inputs, torch_dtype
from ..contract.gpu_names import speed_class
from ..contract.gpus import current
from ..contract.kernel import Kernel
from . import plans
from .environment import code_changing
from .gate_compile import arch_name
from .golden_due import Task
from .outcomes import Outcome, Refused
from .program_steps import plan_of
from .provenance import provenance

if TYPE_CHECKING:
    from torch import Tensor

ENGINES = ("reference", "interpreter", "gpu")


@dataclass(frozen=True)
class Engine:
    """What a process is: "reference", "interpreter" or one like "sm_90", on which torch device, and on what it runs.

    `speed` is the name of a GPU's speed class.
    """

    name: str
    device: str
    facts: dict[str, str]
    speed: str | None = None


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


def layer_output(kernel: Kernel, inputs: Inputs, case: Case) -> "Tensor":
    """What `kernel` makes of `inputs`, on their device: [T, H] in the case's dtype."""
    prepared = kernel.prepare(inputs.banks)
    return kernel.run(prepared, inputs.hidden_states, inputs.topk_weights, inputs.topk_ids, **case.options)


def reference_output(inputs: Inputs, case: Case, rounding: str) -> "Tensor":
    """The right answer in that `rounding` form: [T, H] in the case's dtype, on the CPU."""
    from ..reference.moe import expert_layer

    return expert_layer(*_tensors(inputs), rounding=rounding, **case.options).to(torch_dtype(case.dtype))


def _tensors(inputs: Inputs) -> tuple:
    return inputs.hidden_states, inputs.banks, inputs.topk_weights, inputs.topk_ids


def outcome(engine: Engine, task: Task) -> Outcome:
    """`task` on `engine`, judged; whatever goes wrong is the outcome's problem, so that one case cannot hide others."""
    try:
        if task.case.inputs == "orderfree":
            return Outcome(_exact_digest(engine, task))
        return _recorded(engine, task)
    except Exception as error:
        return Outcome(problem=f"{type(error).__name__}: {error}")


def _exact_digest(engine: Engine, task: Task) -> str:
    from ..reference.draws.layer import draw
    from ..reference.judge import bitwise, context_of
    from ..reference.orderfree import prove

    inputs = draw(task.case)
    prove(inputs, task.case)
    actual = expected = reference_output(inputs, task.case, task.rounding)
    if task.kernel:
        actual = _kernel_output(engine, task, inputs)
    # The reference is judged too: an output of zeros is refused.
    bitwise(actual, expected, **context_of(task.case), kernel=task.kernel or "reference", engine=engine.name)
    return digest(actual)


def _recorded(engine: Engine, task: Task) -> Outcome:
    from ..reference.bounds import enclose
    from ..reference.judge import bounded, context_of

    inputs = random_inputs(task.case)
    actual = _kernel_output(engine, task, inputs)
    interval = enclose(*_tensors(inputs), rounding=task.rounding, **task.case.options)
    bounded(actual, interval, **context_of(task.case), kernel=task.kernel, engine=engine.name)
    return Outcome(digest(actual), plan=described(task, engine.device))


def _kernel_output(engine: Engine, task: Task, inputs: Inputs) -> "Tensor":
    from ..kernels.registry import KERNELS

    return layer_output(KERNELS[task.kernel], inputs.to(engine.device), task.case).cpu()


def described(task: Task, device: str) -> str:
    """The plan of the task's kernel on `device`, in one line."""
    import torch

    from ..kernels.experts import gpu_of, release

    plan = plan_of(task.kernel, task.case, gpu_of(torch.device(device)), release())
    return plans.described(plan) if plan else f"kernel={task.kernel}"


def start(engine: str) -> Engine:
    """Makes this process one of `engine`, one of ENGINES."""
    if engine == "interpreter":
        os.environ["TRITON_INTERPRET"] = "1"
        from . import interpreter  # noqa: F401  (importing it repairs Triton's interpreter)
    if engine != "gpu":
        return Engine(engine, "cpu", provenance(engine))
    if variable := code_changing():
        raise Refused(f"{variable} is set, but should be unset for the engine gpu: other code would run")
    import torch

    if not torch.cuda.is_available():
        raise Refused(f"the engine gpu needs a CUDA GPU, but torch {torch.__version__} sees none on this host")
    gpu = current(0)
    name = arch_name(gpu.capability)
    return Engine(name, "cuda:0", provenance(name), speed_class(gpu).name)
