"""Kernels that cost nothing to run, for tests of what is done with them: the reference's own output, or a fault."""

from collections.abc import Callable

from torch import Tensor

from nvfp4_suite.contract.kernel import Promise
from nvfp4_suite.kernels.registry import ForeignKernel
from nvfp4_suite.reference.moe import expert_layer


def kernel(name: str, fault: Callable[[Tensor], Tensor] = lambda out: out, **promise) -> ForeignKernel:
    """The right layer in bf16, and what `fault` makes of it."""

    def layer(hidden_states, banks, topk_weights, topk_ids, **options):
        out = expert_layer(hidden_states, banks, topk_weights, topk_ids, rounding="w4a16", **options)
        return fault(out.to(hidden_states.dtype))

    return ForeignKernel(name, Promise(**promise), prepare=lambda banks: banks, layer=layer)
