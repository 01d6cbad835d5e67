"""A GEMM of a layer alone: what a kernel makes of x before any activation has hidden it."""

import torch

from nvfp4_suite.contract import gpus
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import experts, hopper, hopper_layer
from nvfp4_suite.kernels.hopper_banks import rearranged_bank
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.registry import KERNELS

from ..addresses import checked_addresses
from ..engine import INTERPRETED, can_run
from ..poison import poisoned_allocations

REGISTERED = [name for name, kernel in KERNELS.items() if "w4a16" in kernel.promise.formats]
W4A16 = [name for name in REGISTERED if can_run(KERNELS[name])]
CARD = Gpu("NVIDIA H200", (9, 0)) if INTERPRETED else gpus.current(0)  # interpreted: where a scale can be NaN


def activates(kernel: str) -> bool:
    """Whether the first GEMM of `kernel` has the activation in it, under the Triton at hand."""
    return kernel in hopper.NAMES and experts.release() in hopper.TRITONS


def gate_up(kernel: str, x: torch.Tensor, packed, scale, global_scale) -> torch.Tensor:
    """[M, N] on the CPU: x [M, K] of one expert's tokens times its bank [N, K], as `kernel`'s plan for them runs it.

    N is a multiple of 32. Of the kernels that are planned for prefill, blocks are those that M tokens get. Where the
    first GEMM has the activation in it, it is the second one, as down of a layer whose hidden size is N.
    """
    m, n, k = len(x), len(packed), x.shape[1]
    shape = LayerShape(1, 1, n, k) if activates(kernel) else LayerShape(1, 1, k, n // 2)
    dtype = "bf16" if x.dtype == torch.bfloat16 else "fp16"
    plan = plan_layer(CARD, shape, m, triton=experts.release(), dtype=dtype, kernel=kernel)
    ids, weights = torch.zeros(m, 1, dtype=torch.int32, device=x.device), torch.ones(m, 1, device=x.device)
    bank = packed[None], scale[None], global_scale[None]
    with poisoned_allocations(), checked_addresses():
        routed = experts.routed_by(plan, weights, ids)
        if activates(kernel):
            bank = (*rearranged_bank(*bank[:2], gated=False), bank[2]) if kernel == hopper.PREPARED else bank
            interleaved = hopper_layer.interleave_k(plan.launch("interleave_k"), x)
            return hopper_layer.down(plan.launch("down"), interleaved, bank, routed).cpu()
        return experts.gemm(plan.launch("gate_up"), x, *bank, *routed).cpu()
