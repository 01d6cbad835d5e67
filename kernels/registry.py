"""Our kernels as Kernel entries: the only way in for layer tests, goldens, benchmarks and mutants."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ..contract.banks import ExpertBanks
from ..contract.kernel import Kernel, Promise
from . import decode, hopper, hopper_gemv
from .experts import fused_experts, prepared
from .variants import VARIANTS
from .w4a4 import FORMS, NATIVE_TRITONS, SPECIALIZED_TRITONS
from .w4a4_layer import Scales


@dataclass(frozen=True)
class PlannedKernel:
    """A kernel that `plan_layer` knows by `name`; it runs on the banks as they are.

    The promise is every variant's, on every CUDA GPU from 8.0: where a card or a shape does not allow what a variant is
    named for, its plan does the nearest that they allow, and says so.
    """

    name: str
    promise: Promise = field(default_factory=Promise)

    def prepare(self, banks: ExpertBanks) -> ExpertBanks:
        return banks

    def run(
        self, prepared: ExpertBanks, hidden_states: Tensor, topk_weights: Tensor, topk_ids: Tensor, **options
    ) -> Tensor:
        return fused_experts(hidden_states, prepared, topk_weights, topk_ids, kernel=self.name, **options)


@dataclass(frozen=True)
class PreparedKernel(PlannedKernel):
    """A W4A16 kernel on banks that are rearranged once, where its GPU and its sizes allow it."""

    def prepare(self, banks: ExpertBanks) -> ExpertBanks:
        return prepared(banks)


@dataclass(frozen=True)
class W4A4Kernel(PlannedKernel):
    """A W4A4 kernel: beside the banks, which need input scales, it keeps the alphas and global scales made of them."""

    def prepare(self, banks: ExpertBanks) -> tuple[ExpertBanks, Scales]:
        return banks, Scales.of(banks)

    def run(
        self,
        prepared: tuple[ExpertBanks, Scales],
        hidden_states: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        **options,
    ) -> Tensor:
        banks, scales = prepared
        return super().run(banks, hidden_states, topk_weights, topk_ids, scales=scales, **options)


@dataclass(frozen=True)
class ForeignKernel:
    """Somebody else's kernel on trial: `layer(hidden_states, prepared, topk_weights, topk_ids, **options)`."""

    name: str
    promise: Promise
    prepare: Callable[[ExpertBanks], Any]
    layer: Callable[..., Tensor]

    def run(self, prepared: Any, hidden_states: Tensor, topk_weights: Tensor, topk_ids: Tensor, **options) -> Tensor:
        return self.layer(hidden_states, prepared, topk_weights, topk_ids, **options)


def _w4a4(name: str) -> W4A4Kernel:
    """The interpreter has no atomics on bf16, and not in every release a native dot."""
    promise, form = Promise(formats=("w4a4",), rounding="w4a4"), FORMS[name]
    if form.atomic:
        promise = replace(promise, rounding="w4a4_atomic", repeatable=False, interpreted=False)
    if form.native:
        tritons = SPECIALIZED_TRITONS if form.specialized else NATIVE_TRITONS
        promise = replace(promise, capabilities=tuple(tritons), interpreted=False)
    return W4A4Kernel(name, promise)


_ON_HOPPER = Promise(capabilities=(hopper.CAPABILITY,), interpreted=False)
_HOPPER = (
    PlannedKernel(hopper.NAME, _ON_HOPPER),
    PreparedKernel(hopper.PREPARED, _ON_HOPPER),
    PlannedKernel(hopper_gemv.NAME, _ON_HOPPER),
)
_KERNELS = (*map(PlannedKernel, (*VARIANTS, decode.NAME)), *_HOPPER, *map(_w4a4, FORMS))
KERNELS: dict[str, Kernel] = {kernel.name: kernel for kernel in _KERNELS}
