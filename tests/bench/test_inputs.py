"""What layers are timed on: never zeros, the same everywhere, and fewer tokens are the first of more."""

import pytest
import torch

from nvfp4_suite.bench import inputs
from nvfp4_suite.bench.points import layer_of
from nvfp4_suite.bench.stages import Given
from nvfp4_suite.ci.recording import digest

LAYER = layer_of("8x2x128x64")


@pytest.fixture(scope="module")
def drawn():
    return inputs.draw(LAYER, 300, "cpu")


def test_the_layer_has_its_shape(drawn):
    assert drawn.banks.layer_shape(2) == LAYER.shape
    assert drawn.hidden_states.shape == (300, 128) and drawn.hidden_states.dtype == torch.bfloat16
    assert drawn.topk_ids.shape == drawn.topk_weights.shape == (300, 2)
    assert drawn.banks.gate_up_input_scale is not None
    assert drawn.options == {"activation": "silu"}


def test_nothing_is_made_of_zeros(drawn):
    x = drawn.hidden_states.float()
    assert (x == 0).float().mean() < 0.01 and abs(x.mean()) < 0.05 and abs(x.std() - 1) < 0.05
    assert len(x.unique(dim=0)) == 300
    assert len(drawn.banks.gate_up_packed.unique()) == 256


def test_routes_go_to_distinct_experts_evenly(drawn):
    ids, weights = drawn.topk_ids, drawn.topk_weights
    assert (ids[:, 0] != ids[:, 1]).all() and ids.dtype == torch.int32 and weights.dtype == torch.float32
    counts = torch.bincount(ids.flatten(), minlength=8)
    assert counts.min() > 40 and counts.max() < 110 and drawn.experts_hit() == 8
    assert torch.allclose(weights.sum(1), torch.ones(300)) and weights.min() > 0.1


def test_fewer_tokens_are_the_first_of_more(drawn):
    few, first = inputs.draw(LAYER, 7, "cpu"), drawn.first(7)
    for name in ("hidden_states", "topk_weights", "topk_ids"):
        assert torch.equal(getattr(few, name), getattr(first, name))
    assert first.banks is drawn.banks and first.tokens == 7


def test_pieces_repeat_nothing(monkeypatch):
    """What is drawn in several pieces; of 64 rows each here."""
    monkeypatch.setattr(inputs, "PIECE", 4 * 128 * 64)
    whole = inputs.bell("key", 200, 128)
    assert torch.equal(whole[:70], inputs.bell("key", 70, 128)) and len(whole.unique(dim=0)) == 200


def test_the_inputs_are_these(device):
    """On every machine, under every torch: rows of two runs compare by their digests."""
    drawn = inputs.draw(LAYER, 300, device)
    parts = (drawn.hidden_states, drawn.topk_weights, drawn.topk_ids)
    assert [digest(part)[:12] for part in parts] == ["79869f12f675", "60749efde6e6", "3d46ed0cea9e"]


def test_what_stages_take_is_made_once(drawn):
    given = Given(drawn.first(5))
    assert given.act is given.act and given.tokens == 5
    assert (given.act.shape, given.gate_up.shape, given.routes.shape) == ((10, 64), (10, 128), (10, 128))
    assert not torch.equal(given.gate_up, given.routes)
