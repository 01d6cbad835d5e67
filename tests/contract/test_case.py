"""Case: ids, hashed numbers, routings that have the property they claim, and random inputs."""

import hashlib
from dataclasses import replace

import pytest
import torch

from nvfp4_suite.contract.case import ROUTINGS, TIERS, Case, hashed, random_inputs, topk_ids, torch_dtype
from nvfp4_suite.contract.shapes import LayerShape

BASE = Case(LayerShape(8, 3, 48, 80), tokens=40)


def routed(routing: str, *, experts: int = 8, top_k: int = 3, tokens: int = 40) -> torch.Tensor:
    return topk_ids(Case(LayerShape(experts, top_k, 48, 80), tokens, routing))


def distinct(ids: torch.Tensor) -> torch.Tensor:
    """Whether each token's ids are distinct."""
    return (ids.sort(dim=1).values.diff(dim=1) != 0).all(dim=1)


def test_id():
    assert BASE.id == "orderfree-e8k3h48i80-t40-random-silu-bf16"
    assert replace(BASE, activation_alpha=1.5, activation_limit=8.0, weight_on_input=True).id == (
        "orderfree-e8k3h48i80-t40-random-silu-bf16-alpha1.5-limit8.0-weight_on_input"
    )
    assert replace(BASE, format="w4a4", atomics=True).id == "orderfree-e8k3h48i80-t40-random-silu-bf16-w4a4-atomics"


def test_ids_differ_if_any_field_does():
    """All but the tier, which says when a case runs and not what it is."""
    changes = [
        {"shape": LayerShape(*sizes)} for sizes in ((7, 3, 48, 80), (8, 2, 48, 80), (8, 3, 64, 80), (8, 3, 48, 96))
    ]
    changes += [{"tokens": 0}, {"tokens": 41}, {"inputs": "random"}, {"dtype": "fp16"}, {"weight_on_input": True}]
    changes += [{"format": "w4a4"}, {"atomics": True}, {"format": "w4a4", "atomics": True}]
    changes += [{"routing": routing} for routing in ROUTINGS if routing != BASE.routing]
    changes += [{"activation": name} for name in ("gelu", "gelu_tanh", "swigluoai")]
    changes += [{"activation_alpha": value} for value in (1.0, 1.7, 1.7020001, 1.7020002)]
    changes += [{"activation_limit": value} for value in (1.0, 7.0000001, 1e9)]
    ids = [BASE.id] + [replace(BASE, **change).id for change in changes]
    assert len(set(ids)) == len(ids)
    assert {replace(BASE, tier=tier).id for tier in TIERS} == {BASE.id}


@pytest.mark.parametrize("name", ("routing", "inputs", "dtype", "activation", "format", "tier"))
def test_unknown_names(name):
    with pytest.raises(ValueError, match=f"^{name} is 'other', but should be one of "):
        replace(BASE, **{name: "other"})


def test_negative_tokens():
    with pytest.raises(ValueError, match=r"^tokens is -1, but should be at least 0$"):
        replace(BASE, tokens=-1)


def test_twice_needs_two_slots():
    with pytest.raises(ValueError, match=r"^routing is 'twice', but needs a top_k of at least 2"):
        Case(LayerShape(8, 1, 48, 80), 40, "twice")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"shape": LayerShape(8, 2, 48, 80)}, "inputs 'orderfree' and a top_k of 2"),
        ({"inputs": "random"}, "inputs 'random' and a top_k of 3"),
    ],
)
def test_atomics_need_three_slots_and_orderfree_inputs(change, found):
    with pytest.raises(ValueError, match=f"^atomics is True with {found}, but needs inputs 'orderfree' and a top_k of"):
        replace(BASE, atomics=True, **change)


def test_options_are_those_of_a_kernel():
    options = {"activation": "swigluoai", "activation_alpha": 1.5, "activation_limit": 6.0, "weight_on_input": True}
    assert replace(BASE, **options).options == options


def test_torch_dtype():
    assert (torch_dtype("bf16"), torch_dtype("fp16")) == (torch.bfloat16, torch.float16)


def lowbias32(x: int) -> int:
    x = ((x ^ (x >> 16)) * 0x7FEB352D) % 2**32
    x = ((x ^ (x >> 15)) * 0x846CA68B) % 2**32
    return x ^ (x >> 16)


def test_hash_is_the_one_it_says():
    start, stride = hashlib.sha256(b"key").digest()[:4], hashlib.sha256(b"key").digest()[4:8]
    start, stride = int.from_bytes(start, "little"), int.from_bytes(stride, "little") | 1
    assert hashed("key", 1000).tolist() == [lowbias32((start + i * stride) % 2**32) for i in range(1000)]


def test_hash_never_changes():
    """All goldens rest on these numbers."""
    assert hashed("key", 4).tolist() == [3327797276, 2227043423, 1277533007, 1419901388]
    assert hashed("", 2, 2).tolist() == [[2583263673, 3363802237], [1516355845, 1655555465]]


def test_hash_does_not_depend_on_the_shape():
    assert torch.equal(hashed("key", 6, 5).flatten(), hashed("key", 30))
    assert hashed("key", 0, 3).shape == (0, 3)
    assert hashed("key").shape == ()


def test_hash_is_uniform_enough():
    """2^16 draws: every bit is set half of the time (5 standard deviations), every byte value about equally often."""
    x = hashed("uniform", 2**16)
    assert x.dtype == torch.int64 and x.min() >= 0 and x.max() < 2**32
    for bit in range(32):
        assert abs(((x >> bit) & 1).sum().item() - 2**15) < 5 * 2**7
    for byte in range(4):
        counts = ((x >> (8 * byte)) & 0xFF).bincount(minlength=256)
        chi_squared = ((counts - 256) ** 2 / 256).sum().item()
        assert chi_squared < 255 + 5 * 510**0.5


def test_neighbours_and_keys_are_unrelated():
    """The correlation of 2^16 pairs stays within 5 / sqrt(2^16)."""
    x, other = (hashed(key, 2**16 + 1).double() / 2**32 - 0.5 for key in ("one", "two"))
    for a, b in ((x[1:], x[:-1]), (x, other)):
        assert abs((a * b).mean() * 12) < 5 / 2**8


@pytest.mark.parametrize("tokens", (0, 1, 40))
@pytest.mark.parametrize("routing", ROUTINGS)
def test_routing_has_its_shape(routing, tokens):
    ids = routed(routing, tokens=tokens)
    assert ids.shape == (tokens, 3) and ids.dtype == torch.int32 and ids.is_contiguous()
    assert routing == "dropped" or ((ids >= 0) & (ids < 8)).all()


def test_random_names_distinct_experts_and_reaches_all():
    ids = routed("random")
    assert distinct(ids).all() and len(ids.unique()) == 8
    assert len(ids[:, 0].unique()) == 8, "the first slot should not favour some experts"


def test_hot_names_expert_0_once_in_every_token():
    ids = routed("hot")
    assert (ids[:, 0] == 0).all() and distinct(ids).all() and len(ids.unique()) == 8


def test_few_leaves_all_but_two_experts_empty():
    assert routed("few", top_k=2).unique().tolist() == [0, 1]
    assert routed("few").unique().tolist() == [0, 1]
    assert routed("few", experts=1).unique().tolist() == [0]


@pytest.mark.parametrize("top_k", (2, 3, 8))
def test_twice_names_one_expert_twice_in_every_token(top_k):
    ids = routed("twice", top_k=top_k)
    assert (ids[:, 0] == ids[:, -1]).all() and distinct(ids[:, :-1]).all()


@pytest.mark.parametrize("tokens", (1, 2, 3, 5, 40))
@pytest.mark.parametrize("top_k", (1, 2, 3))
def test_dropped_has_ids_that_are_no_expert(tokens, top_k):
    ids = routed("dropped", tokens=tokens, top_k=top_k)
    assert not ((ids >= 0) & (ids < 8)).all()


def test_dropped_has_ids_on_both_sides_and_keeps_most():
    ids = routed("dropped")
    assert {-1, 8, -7, 11} <= set(ids.unique().tolist()) <= {-1, 8, -7, 11, *range(8)}
    assert 0.5 < ((ids >= 0) & (ids < 8)).double().mean() < 0.8


RANDOM = replace(BASE, inputs="random", tokens=64)


def test_random_inputs_never_change():
    inputs = random_inputs(RANDOM)
    tensors = [inputs.hidden_states, inputs.topk_weights, inputs.topk_ids]
    tensors += [
        getattr(inputs.banks, f"{bank}_{role}")
        for bank in ("gate_up", "down")
        for role in ("packed", "scale", "global")
    ]
    digest = hashlib.sha256(b"".join(t.view(torch.uint8).numpy().tobytes() for t in tensors)).hexdigest()
    assert digest == "d2b90d55e592c6827f43796cd5fc2ea5e81809e76f3f085c87657521886494ee"


@pytest.mark.parametrize("dtype", ("bf16", "fp16"))
def test_random_inputs_are_like_a_layers(dtype):
    inputs = random_inputs(replace(RANDOM, dtype=dtype))
    x, banks = inputs.hidden_states, inputs.banks
    assert x.shape == (64, 48) and x.dtype == torch_dtype(dtype)
    assert abs(x.double().mean()) < 0.1 and abs(x.double().std() - 1) < 0.1
    assert (banks.experts, banks.hidden, banks.intermediate) == (8, 48, 80)
    assert len(banks.gate_up_packed.unique()) == 256 and len(banks.down_packed.unique()) == 256
    assert banks.gate_up_scale.view(torch.uint8).unique().tolist() == list(range(0x30, 0x48))
    assert len(banks.gate_up_global.unique()) == banks.gate_up_global.numel()
    assert inputs.topk_weights.min() >= 2**-6 and inputs.topk_weights.max() < 1 + 2**-6


def test_random_inputs_have_input_scales_in_w4a4_alone():
    """They never change; they differ from expert to expert, and the values they scale to 448 * 6 are plausible."""
    plain, inputs = random_inputs(RANDOM), random_inputs(replace(RANDOM, format="w4a4"))
    assert plain.banks.gate_up_input_scale is None and plain.banks.down_input_scale is None
    scales = [inputs.banks.gate_up_input_scale, inputs.banks.down_input_scale]
    for scale in scales:
        assert scale.shape == (8,) and len(scale.unique()) == 8
        assert (scale * 2688 >= 2).all() and (scale * 2688 < 4).all()
    assert not torch.equal(*scales)
    digest = hashlib.sha256(b"".join(scale.numpy().tobytes() for scale in scales)).hexdigest()
    assert digest == "0120c7b6d1ea1182d572158ffb17b0653c523c6469325ffe8e88490aef929527"
