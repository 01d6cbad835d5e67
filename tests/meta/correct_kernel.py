"""A correct W4A16 kernel as a judge must let it pass: fp32 sums in an order of its own, and other formulas for f."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from nvfp4_suite.contract.case import Case, Inputs, hashed
from nvfp4_suite.reference import formats

Sums = Callable[[Tensor, Tensor], Tensor]  # fp32 [R, K] times fp32 [N, K]: fp32 [R, N]


def shuffled_sums(key: str) -> Sums:
    """Sums in fp32 in a hashed order of K."""

    def sums(x: Tensor, weight: Tensor) -> Tensor:
        order = hashed(key, x.shape[1]).argsort()
        return x[:, order] @ weight[:, order].T

    return sums


def cut_off_sums(step: int) -> Sums:
    """As a tensor core: `step` exact products at a time, and the sum is cut off to fp32, always towards zero."""

    def sums(x: Tensor, weight: Tensor) -> Tensor:
        total = torch.zeros(len(x), len(weight), dtype=torch.float64)
        for k in torch.arange(x.shape[1]).split(step):
            total = total + x[:, k].double() @ weight[:, k].double().T
            total = (total.view(torch.int64) & -(2**29)).view(torch.float64)  # 24 of 53 significant bits stay
        return total.float()

    return sums


def layer(case: Case, inputs: Inputs, sums: Sums) -> Tensor:
    """The output [T, H] of `case` in its dtype."""
    x, banks, d = inputs.hidden_states, inputs.banks, inputs.hidden_states.dtype
    routes = torch.zeros(*inputs.topk_ids.shape, x.shape[1])
    for expert in range(banks.experts):
        tokens, slots = (inputs.topk_ids == expert).nonzero(as_tuple=True)
        w = inputs.topk_weights[tokens, slots][:, None]
        rows = (x[tokens].float() * w).to(d) if case.weight_on_input else x[tokens]
        gate_up = sums(rows.float(), _weight(banks.gate_up_packed, banks.gate_up_scale, expert))
        gate, up = (gate_up * banks.gate_up_global[expert]).to(d).float().chunk(2, dim=1)
        h = _activated(case, gate, up).to(d)
        route = sums(h.float(), _weight(banks.down_packed, banks.down_scale, expert)) * banks.down_global[expert]
        routes[tokens, slots] = (route if case.weight_on_input else route * w).to(d).float()
    total = torch.zeros_like(routes[:, 0])
    for slot in range(routes.shape[1]):
        total = total + routes[:, slot]
    return total.to(d)


def _weight(packed: Tensor, scale: Tensor, expert: int) -> Tensor:
    """Without the global scale: exact in fp32."""
    return formats.dequantize_blocks(packed[expert], scale[expert]).float()


def _activated(case: Case, gate: Tensor, up: Tensor) -> Tensor:
    if case.activation == "swigluoai":
        gate, up = gate.clamp(max=case.activation_limit), up.clamp(-case.activation_limit, case.activation_limit)
        return gate / (1 + torch.exp2(gate * (-case.activation_alpha * math.log2(math.e)))) * (up + 1)
    if case.activation == "gelu":
        return gate * (0.5 * (1 + torch.erf(gate * 0.5**0.5))) * up
    if case.activation == "gelu_tanh":
        gate_cubed = gate * gate * gate
        return gate * torch.sigmoid(2 * (2 / math.pi) ** 0.5 * (gate + 0.044715 * gate_cubed)) * up
    return gate * (1 / (1 + torch.exp2(gate * -math.log2(math.e)))) * up
