"""Which launches of the portable plan compile for AMD GPUs: for information, never red, as nobody here has run them."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from ..contract.gpus import PORTABLE
from ..contract.shapes import CHECKPOINTS
from ..kernels.launch import Launch
from ..kernels.plan import plan_layer
from .gate_compile import Child, compiled_for
from .gate_facts import GateError
from .gates import RAGGED

WARP_SIZES = {"gfx942": 64, "gfx950": 64, "gfx1151": 32, "gfx1201": 32}
TOKENS = (1, 4096)  # the smallest block and the largest


def launches() -> list[Launch]:
    """Every kernel of the portable plan, with a K of whole steps and with an odd multiple of 16."""
    plans = [
        plan_layer(PORTABLE, shape, tokens, kernel=kernel, weight_on_input=kernel == "decode")
        for shape in (CHECKPOINTS["GLM-4.7"], RAGGED)
        for tokens, kernel in (*((tokens, "prefill") for tokens in TOKENS), (1, "decode"))
    ]
    return list(dict.fromkeys(launch for plan in plans for launch in plan.launches))


def lines(jobs: int) -> list[str]:
    """ "gfx942: 20 of 22 launches compile; 2 do not: why", for each architecture."""
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(_line, WARP_SIZES))


def _line(arch: str) -> str:
    child, listed = Child(), launches()
    try:
        errors = [error for launch in listed if (error := _error(child, launch, arch))]
    finally:
        child.close()
    why = "".join(f"; {count} do not: {error}" for error, count in Counter(errors).items())
    return f"{arch}: {len(listed) - len(errors)} of {len(listed)} launches compile{why}"


def _error(child: Child, launch: Launch, arch: str) -> str:
    try:
        child.call(f"{launch.label} on {arch}", compile_amd, launch, arch)
    except GateError as error:
        return str(error).partition(f" on {arch}")[2].removeprefix(" does not compile, but should: ")
    return ""


def compile_amd(launch: Launch, arch: str) -> None:
    """Raises GateError if `launch` does not compile for `arch` in this process."""
    from triton.backends.compiler import GPUTarget

    compiled_for(launch, GPUTarget("hip", arch, WARP_SIZES[arch]), arch)
