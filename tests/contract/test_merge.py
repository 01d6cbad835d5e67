"""merge: one layer's banks from parts of its experts, and what does not belong together."""

import re

import pytest
import torch

from nvfp4_suite.contract.banks import ExpertBanks
from nvfp4_suite.contract.checkpoint import load_experts, load_layer
from nvfp4_suite.contract.dense_banks import DenseBanks
from nvfp4_suite.contract.merge import merge

from .checkpoints import FOLDERS, dense, tiny, write
from .test_checkpoint_forms import assert_same


def part_of(banks: ExpertBanks, experts: slice) -> ExpertBanks:
    return ExpertBanks(**{name: tensor[experts].clone() for name, tensor in banks.tensors()})


@pytest.fixture(params=FOLDERS)
def whole(request) -> ExpertBanks:
    return load_experts(FOLDERS[request.param], 0)


@pytest.mark.parametrize("cuts", [(4,), (1, 4), (2, 4), (1, 2, 3, 4)], ids=str)
def test_parts_of_a_layer_make_the_layer(whole, cuts):
    """Input scales included: W4A4 takes the largest of all experts (FlashML-org/FreeToken#723, known issue 1)."""
    parts = [part_of(whole, slice(low, high)) for low, high in zip((0, *cuts), cuts, strict=False)]
    assert_same(merge(parts), whole)


def test_parts_without_input_scales(whole):
    bare = whole.without_input_scales()
    parts = [part_of(bare, slice(0, 1)), part_of(bare, slice(1, 4))]
    assert_same(merge(parts), bare)
    assert merge(parts).formats == ("w4a16",)


def test_dense_parts(tmp_path):
    banks = load_layer(write(tmp_path, dense(experts=3)), 0)
    parts = [DenseBanks(banks.gate_up[i : i + 1].clone(), banks.down[i : i + 1].clone()) for i in range(3)]
    assert torch.equal(merge(parts).gate_up, banks.gate_up) and torch.equal(merge(parts).down, banks.down)


def test_input_scales_are_not_lost_on_the_way(whole):
    """Which of the two was meant is for the caller to say, in either order."""
    for parts, having, lacking in (([whole, whole.without_input_scales()], 0, 1), (None, 1, 0)):
        parts = parts or [whole.without_input_scales(), whole]
        message = f"part {having} has input scales and part {lacking} has none, but all should, or none"
        with pytest.raises(ValueError, match=message):
            merge(parts)
    bare = merge([whole.without_input_scales(), whole.without_input_scales()])
    assert (bare.experts, bare.gate_up_input_scale) == (8, None)


def test_parts_that_do_not_belong_together(whole, tmp_path):
    small, plain = load_experts(write(tmp_path, tiny("modelopt")), 0), load_layer(write(tmp_path, dense()), 0)
    half = DenseBanks(plain.gate_up.half(), plain.down.half())
    for error, parts, message in (
        (ValueError, [], "there are no parts"),
        (ValueError, [whole, small], "part 1 has hidden 32, but should have 384 as in part 0"),
        (TypeError, [small, plain], "parts 0 and 1 are ExpertBanks for w4a4 or w4a16 and DenseBanks for bf16, but"),
        (TypeError, [plain, plain, half], "parts 0 and 2 are DenseBanks for bf16 and DenseBanks for fp16, but"),
    ):
        with pytest.raises(error, match=re.escape(message)):
            merge(parts)
