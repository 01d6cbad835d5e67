"""Single launches of a plan on order-free inputs, from poisoned buffers; results on the CPU."""

from functools import lru_cache

import torch

from nvfp4_suite.cases.stages import GEMMS, GemmCase
from nvfp4_suite.contract import gpus
from nvfp4_suite.contract.gpus import PORTABLE, Gpu
from nvfp4_suite.kernels import experts, hopper, hopper_layer
from nvfp4_suite.kernels.hopper_banks import rearranged_bank
from nvfp4_suite.kernels.plan import LayerPlan
from nvfp4_suite.reference.draws.stages import Gemm, draw_gemm

from ..engine import INTERPRETED
from ..poison import poisoned_allocations

# Scales as bytes, decoded by integer operations, and as e4m3 if this GPU has it; the interpreter has.
CARDS = [PORTABLE, Gpu("NVIDIA H200", (9, 0)) if INTERPRETED else gpus.current(0)]


@lru_cache(maxsize=len(GEMMS))
def drawn(case: GemmCase) -> list[Gemm]:
    """The inputs of `case`, expert by expert."""
    return [draw_gemm(key, case.rows, case.n, case.k, case.dtype, case.format) for key in case.keys]


def gemm(plan: LayerPlan, stage: str, gemms: list[Gemm], device: str) -> list[torch.Tensor]:
    """[R, N] for each of `gemms`, which are the experts of one grouped GEMM; the rows of x take turns.

    Of the kernel for sm_90 "down" alone: its first GEMM has the activation in it.
    """

    def together(name: str) -> torch.Tensor:
        return torch.cat([getattr(one.weights, name) for one in gemms]).to(device)

    x, topk_weights = (torch.stack([getattr(one, name) for one in gemms], 1) for name in ("x", "topk_weights"))
    ids = torch.arange(len(gemms), dtype=torch.int32).repeat(x.shape[0])[:, None].to(device)
    banks = together("packed"), together("scale").view(torch.float8_e4m3fn), together("global_scale")
    with poisoned_allocations():
        routed = experts.routed_by(plan, topk_weights.flatten()[:, None].to(device), ids)
        rows = x.flatten(0, 1).to(device)
        if hopper.wants_prepared(plan.launch(stage)):
            banks = *rearranged_bank(*banks[:2], gated=False), banks[2]
        if interleave := plan.launch("interleave_k"):
            out = hopper_layer.down(plan.launch(stage), hopper_layer.interleave_k(interleave, rows), banks, routed)
        else:
            out = experts.gemm(plan.launch(stage), rows, *banks, *routed)
    return list(out.cpu().unflatten(0, x.shape[:2]).unbind(1))


def activation(plan: LayerPlan, gate_up: torch.Tensor, limit: float, device: str) -> torch.Tensor:
    """[R, I] of gate_up [R, 2 I], for routes of expert 0; alpha is 1.702."""
    ids = torch.zeros(len(gate_up), 1, dtype=torch.int32, device=device)
    gate_up = gate_up.to(device)
    with poisoned_allocations():
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
        options = {"alpha": 1.702, "limit": limit, "topk_ids": ids, "experts": 1}
        experts.by_columns(plan.launch("activation"), gate_up=gate_up, out=out, **options)
    return out.cpu()


def sum_routes(plan: LayerPlan, routes: torch.Tensor, device: str) -> torch.Tensor:
    """[T, H] of routes [T, top_k, H], all of expert 0."""
    tokens, top_k, hidden = routes.shape
    ids = torch.zeros(tokens, top_k, dtype=torch.int32, device=device)
    routes = routes.flatten(0, 1).to(device)
    with poisoned_allocations():
        out = routes.new_empty(tokens, hidden)
        options = {"top_k": top_k, "topk_ids": ids, "experts": 1}
        experts.by_columns(plan.launch("sum_routes"), route_out=routes, out=out, **options)
    return out.cpu()
