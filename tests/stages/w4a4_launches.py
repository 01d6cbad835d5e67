"""Single launches of a W4A4 plan, from poisoned buffers; results on the CPU."""

from contextlib import contextmanager

import torch

from nvfp4_suite.kernels import experts, w4a4_layer
from nvfp4_suite.kernels.plan import LayerPlan
from nvfp4_suite.kernels.quantizer import start_quantize
from nvfp4_suite.kernels.w4a4_layer import Rows, Weights

from ..poison import poisoned_allocations

LIMITS = {"activation_alpha": 1.702, "activation_limit": 7.0}


def quantize(plan: LayerPlan, x: torch.Tensor, stored: torch.Tensor, device: str) -> Rows:
    with poisoned_allocations():
        rows = start_quantize(plan.launch("quantize"), x.to(device), stored.to(device))
    return _on_host(rows)


def gate_up(
    plan: LayerPlan, x: Rows, weights: Weights, stored: torch.Tensor, routing: tuple, device: str, **limits
) -> Rows:
    """What the `routing`, topk_weights and topk_ids [T, top_k], makes of `x`; rows of dropped routes stay poisoned."""
    x, weights = _moved(x, device), _moved(weights, device)
    with _routed(plan, routing, device) as routed:
        out = w4a4_layer.gate_up(plan.launch("gate_up"), x, weights, stored.to(device), routed, **(limits or LIMITS))
    return _on_host(out)


def down(plan: LayerPlan, h: Rows, weights: Weights, routing: tuple, dtype: torch.dtype, device: str) -> torch.Tensor:
    """[R, H], a row per route."""
    h, weights = _moved(h, device), _moved(weights, device)
    with _routed(plan, routing, device) as routed:
        out = torch.empty(len(h[0]), weights[0].shape[1], dtype=dtype, device=device)
        w4a4_layer.down(plan.launch("down"), h, weights, routed, out)
    return out.cpu()


@contextmanager
def _routed(plan: LayerPlan, routing: tuple, device: str):
    topk_weights, topk_ids = _moved(routing, device)
    with poisoned_allocations():
        yield experts.routed_by(plan, topk_weights, topk_ids)


def _moved(tensors: tuple, device: str) -> tuple:
    return tuple(tensor.to(device) for tensor in tensors)


def _on_host(tensors: tuple) -> tuple:
    return _moved(tensors, "cpu")
