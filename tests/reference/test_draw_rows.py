"""Rows are drawn again until they pass, each from the first attempt with which it does."""

import pytest
import torch

from nvfp4_suite.reference import formats
from nvfp4_suite.reference.draws.rows import ATTEMPTS, Rows, first_passing, weight_rows


def numbered(attempt: int) -> Rows:
    """Rows [2, 3] that say from which attempt they are."""
    packed, scale = torch.full((2, 3, 8), attempt), torch.full((2, 3, 1), attempt)
    return Rows(packed.to(torch.uint8), scale.to(torch.uint8), torch.full((2, 3), float(attempt)))


def test_each_row_is_from_the_first_attempt_with_which_it_passes():
    least = torch.tensor([[0, 3, 1], [ATTEMPTS - 1, 0, ATTEMPTS + 5]])
    rows = first_passing(numbered, lambda rows: rows.global_scale >= least)
    expected = least.clamp(max=ATTEMPTS - 1)  # the last one never passes, and stays
    assert torch.equal(rows.global_scale, expected.float())
    assert torch.equal(rows.packed, expected[..., None].expand(2, 3, 8).to(torch.uint8))
    assert torch.equal(rows.scale, expected[..., None].to(torch.uint8))


def test_a_column_that_fails_is_drawn_again_for_every_expert():
    rows = first_passing(numbered, lambda rows: rows.global_scale[:1] >= torch.tensor([0, 2, 1]))
    assert rows.global_scale.tolist() == [[0, 2, 1], [0, 2, 1]]


@pytest.mark.parametrize("binades", [1, 4])
def test_later_attempts_have_fewer_binades_and_then_fewer_codes(binades):
    used = []
    for attempt in range(binades + 2):
        rows = weight_rows("key", 2, 64, 256, 1.0, attempt, binades)
        exponents = rows.scale.clamp(min=8) >> 3  # subnormals share the first exponent
        spread = (exponents.amax(-1).int() - exponents.amin(-1)).max().item() + 1
        assert spread == max(binades - attempt, 1)
        used.append((formats.unpack(rows.packed) & 7 != 0).double().mean().item())
    for share, expected in zip(used, [7 / 8] * binades + [7 / 16, 7 / 32], strict=True):
        assert abs(share - expected) < 0.02


def test_a_global_takes_the_exponent_of_its_row_back():
    rows = weight_rows("key", 2, 64, 256, 2.0**-5, 0)
    assert set((rows.scale >> 3).unique().tolist()) == set(range(15))
    rms = (rows.weights() * rows.global_scale.double()[..., None]).square().mean(-1).sqrt()
    assert (rms > 2.0**-5).all() and (rms < 2.0**-1).all()
