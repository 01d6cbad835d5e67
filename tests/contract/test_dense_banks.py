"""DenseBanks: what it accepts, and what it refuses."""

import pytest
import torch

from nvfp4_suite.contract.dense_banks import DenseBanks
from nvfp4_suite.contract.shapes import LayerShape

GATE_UP, DOWN = (2, 32, 48), (2, 48, 16)


def zeros(*shape: int, dtype=torch.bfloat16, device="cpu") -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "bf16"), (torch.float16, "fp16")])
def test_good_banks(dtype, name):
    banks = DenseBanks(zeros(*GATE_UP, dtype=dtype), zeros(*DOWN, dtype=dtype))
    assert (banks.experts, banks.hidden, banks.intermediate, banks.formats) == (2, 48, 16, (name,))
    assert banks.layer_shape(top_k=2) == LayerShape(2, 2, 48, 16)
    assert banks.to("meta").device.type == "meta" and banks.to("meta").down.device.type == "meta"


# what is wrong, gate_up, down, error, what is said
WRONG = [
    ("list", [0], zeros(*DOWN), TypeError, "gate_up is a list, but should be a torch.Tensor"),
    ("float", zeros(*GATE_UP, dtype=torch.float32), zeros(*DOWN), TypeError, "gate_up is torch.float32, but should"),
    ("dtypes", zeros(*GATE_UP), zeros(*DOWN, dtype=torch.float16), TypeError, "down is torch.float16, but should be"),
    ("flat", zeros(32, 48), zeros(*DOWN), ValueError, r"gate_up has shape \[32, 48\], but should be \[experts, "),
    ("empty", zeros(0, 32, 48), zeros(0, 48, 16), ValueError, r"gate_up has shape \[0, 32, 48\]"),
    ("rows", zeros(2, 48, 48), zeros(2, 48, 24), ValueError, r"gate_up has shape \[2, 48, 48\]"),
    ("hidden", zeros(2, 32, 40), zeros(2, 40, 16), ValueError, r"gate_up has shape \[2, 32, 40\]"),
    (
        "down",
        zeros(*GATE_UP),
        zeros(2, 16, 48),
        ValueError,
        r"shape \[2, 16, 48\], but should be \[2, 48, 16\]",
    ),
    ("experts", zeros(*GATE_UP), zeros(3, 48, 16), ValueError, r"down has shape \[3, 48, 16\]"),
    ("device", zeros(*GATE_UP), zeros(*DOWN, device="meta"), ValueError, "down is on meta, but should be on cpu like"),
    ("strides", zeros(2, 48, 32).transpose(1, 2), zeros(*DOWN), ValueError, "gate_up has strides .*contiguous"),
    (
        "address",
        zeros(*GATE_UP),
        zeros(1537)[1:].view(DOWN),
        ValueError,
        "down starts at 2 bytes past a multiple",
    ),
]


@pytest.mark.parametrize(("gate_up", "down", "error", "message"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_wrong_banks(gate_up, down, error, message):
    with pytest.raises(error, match=message):
        DenseBanks(gate_up, down)
