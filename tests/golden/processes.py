"""Processes that compute nothing, and so start at once: what stands in for recording.start in them. Imports no torch.

They import this by name, so what they should do otherwise comes through the environment.
"""

import hashlib
import os
import signal
import time

from nvfp4_suite.ci import recording
from nvfp4_suite.ci.golden_due import Task
from nvfp4_suite.ci.outcomes import Outcome
from nvfp4_suite.ci.recording import Engine

CPU = {"python": "3.11.7", "torch": "2.13.0", "device": "x86_64"}
GPU = {
    "assembler": "ptxas 12.9",
    "device": "NVIDIA H200",
    "driver": "580",
    "python": "3.12.3",
    "torch": "2.11.0+cu130",
    "triton": "3.8.0",
}
FAULTS = "PRETENDED_FAULTS"  # "GPU-1=varies": on the GPU whose UUID begins so; "=dies": everywhere


def made_up(engine: str) -> Engine:
    """Gives each output a digest of its name."""
    recording.outcome = _outcome
    if engine != "gpu":
        return Engine(engine, "cpu", CPU)
    return Engine("sm_90", "cpu", GPU, "data center")


def _outcome(engine: Engine, task: Task) -> Outcome:
    where, _, fault = os.environ.get(FAULTS, "").partition("=")
    text = str(task.case.id)
    if fault and os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith(where):
        if fault == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "sleeps":
            time.sleep(600)
        if fault == "fails":
            return Outcome(problem=f"RuntimeError: CUDA error in process {os.getpid()}")
        text += fault
    return Outcome(hashlib.sha256(text.encode()).hexdigest(), plan=f"kernel={task.kernel} BLOCK_M=16")


def surroundings(engine: str) -> Engine:
    """Outcomes say where they were made."""
    recording.outcome = lambda _, task: Outcome(f"{os.getpid()} {os.environ['TRITON_CACHE_DIR']}")
    return Engine(engine, "cpu", {})


def unlike(engine: str) -> Engine:
    """No two of these are alike."""
    recording.outcome = _outcome
    return Engine(engine, "cpu", {"process": str(os.getpid())})
