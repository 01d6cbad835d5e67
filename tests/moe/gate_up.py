"""The first GEMM of a layer alone: what a kernel makes of x before any activation has hidden it."""

import torch

from nvfp4_suite.contract import gpus
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import experts
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.registry import KERNELS

from ..addresses import checked_addresses
from ..engine import INTERPRETED
from ..poison import poisoned_allocations

W4A16 = [name for name, kernel in KERNELS.items() if "w4a16" in kernel.promise.formats]
CARD = Gpu("NVIDIA H200", (9, 0)) if INTERPRETED else gpus.current(0)  # interpreted: where a scale can be NaN


def gate_up(kernel: str, x: torch.Tensor, packed, scale, global_scale) -> torch.Tensor:
    """[M, N] on the CPU: x [M, K] of one expert's tokens times its bank [N, K], as `kernel`'s plan for them runs it.

    N is a multiple of 32. Of the kernels that are planned for prefill, blocks are those that M tokens get.
    """
    m, k = x.shape
    dtype = "bf16" if x.dtype == torch.bfloat16 else "fp16"
    plan = plan_layer(CARD, LayerShape(1, 1, k, len(packed) // 2), m, dtype=dtype, kernel=kernel)
    ids, weights = torch.zeros(m, 1, dtype=torch.int32, device=x.device), torch.ones(m, 1, device=x.device)
    with poisoned_allocations(), checked_addresses():
        routed = experts.routed_by(plan, weights, ids)
        bank = (packed[None], scale[None], global_scale[None])
        return experts.gemm(plan.launch("gate_up"), x, *bank, *routed).cpu()
