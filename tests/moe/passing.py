"""Layers that hand numbers through: chosen gates and ups come out as f(gate) * up, by sums that nothing rounds."""

from collections.abc import Sequence

import torch

from nvfp4_suite.contract.banks import ExpertBanks

E4M3_NAN = 0x7F
LOW_ONE, HIGH_ONE = 0x02, 0x20  # a byte of codes of which one is 1.0


def banks(experts: int, hidden: int, intermediate: int, device: str) -> ExpertBanks:
    """gate is the first element of x, up the last one times the expert's number + 1; any output is f(gate) * up.

    Of the intermediate, all but the first element are 0. Before and behind the experts lie two others whose weights are
    NaN, for who reads there.
    """
    gate_up = torch.zeros(experts + 2, 2 * intermediate, hidden // 2, dtype=torch.uint8, device=device)
    gate_up[:, 0, 0] = LOW_ONE
    gate_up[:, intermediate, -1] = HIGH_ONE
    down = torch.zeros(experts + 2, hidden, intermediate // 2, dtype=torch.uint8, device=device)
    down[:, :, 0] = LOW_ONE
    gate_up_global = torch.ones(experts + 2, 2 * intermediate, device=device)
    gate_up_global[:, intermediate:] = torch.arange(experts + 2, device=device)[:, None]
    tensors = gate_up, _ones(gate_up), gate_up_global, down, _ones(down), torch.ones(down.shape[:2], device=device)
    for tensor in tensors:
        if tensor.dtype == torch.float32:
            tensor[[0, -1]] = torch.nan
    return ExpertBanks(*(tensor[1:-1] for tensor in tensors))


def _ones(packed: torch.Tensor) -> torch.Tensor:
    """Block scales of 1, but NaN for the first and the last expert."""
    scale = torch.full((*packed.shape[:2], packed.shape[2] // 8), 0x38, dtype=torch.uint8, device=packed.device)
    scale[[0, -1]] = E4M3_NAN
    return scale.view(torch.float8_e4m3fn)


def tokens(gates: Sequence[float], ups: Sequence[float], hidden: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """x [T, hidden] with these gates and ups."""
    x = torch.zeros(len(gates), hidden, dtype=dtype, device=device)
    x[:, 0] = torch.tensor(gates, dtype=dtype)
    x[:, -1] = torch.tensor(ups, dtype=dtype)
    return x
