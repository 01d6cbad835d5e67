"""The Triton releases that plans are made for, and what each of them cannot compile for. Pure."""

from ..contract.checks import choice
from ..contract.gpus import Gpu

TRITONS = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")

# The releases whose assembler stops with an error; 3.7.1's is the first that knows sm_110.
NO_ASSEMBLER: dict[tuple[int, int], tuple[str, ...]] = {(11, 0): ("3.6.0",)}


def check_target(gpu: Gpu, triton: str) -> None:
    """Raises TypeError for what is no GPU, ValueError for an unknown release and for one that cannot compile for it."""
    choice("triton", triton, TRITONS)
    if not isinstance(gpu, Gpu):
        raise TypeError(f"gpu is {gpu!r}, but should be a Gpu")
    if gpu.backend == "cuda" and triton in NO_ASSEMBLER.get(gpu.capability, ()):
        arch = "sm_{}{}a".format(*gpu.capability)
        raise ValueError(f"triton is {triton!r}, but should be a later one for {gpu.name}: its ptxas knows no {arch}")
