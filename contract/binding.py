"""Layers of several formats side by side: each with a kernel that takes it."""

from collections.abc import Mapping
from typing import NamedTuple

from .banks import ExpertBanks
from .dense_banks import DenseBanks
from .kernel import Kernel


class Bound(NamedTuple):
    """One layer's banks and the name of the kernel that serves them."""

    kernel: str
    banks: ExpertBanks | DenseBanks


def bind(layers: Mapping[int, ExpertBanks | DenseBanks], kernels: Mapping[str, Kernel]) -> dict[int, Bound]:
    """For each layer the first of `kernels` that takes the best of its banks' formats that any kernel takes.

    Layers do not constrain each other: banks with input scales get a kernel of W4A4 where there is one, whatever stands
    beside them. Raises ValueError naming the layer, its formats and what the kernels take.
    """
    return {layer: Bound(_kernel_for(layer, banks.formats, kernels), banks) for layer, banks in layers.items()}


def _kernel_for(layer: int, formats: tuple[str, ...], kernels: Mapping[str, Kernel]) -> str:
    for wanted in formats:
        for name, kernel in kernels.items():
            if wanted in kernel.promise.formats:
                return name
    taken = ", ".join(f"{name} ({' and '.join(kernel.promise.formats)})" for name, kernel in kernels.items())
    raise ValueError(f"layer {layer} has experts for {' or '.join(formats)}, which no kernel takes: {taken or 'none'}")
