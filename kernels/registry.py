"""Our kernels as Kernel entries: the only way in for layer tests, goldens, benchmarks and mutants."""

from dataclasses import dataclass, field

from torch import Tensor

from ..contract.banks import ExpertBanks
from ..contract.kernel import Kernel, Promise
from . import decode
from .experts import fused_experts
from .variants import VARIANTS


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


KERNELS: dict[str, Kernel] = {kernel.name: kernel for kernel in map(PlannedKernel, (*VARIANTS, decode.NAME))}
