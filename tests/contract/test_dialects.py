"""One layer in every dialect gives one bank, whole, or an error: the fault is FlashML-org/FreeToken#430 (#390, #343).

There the key pattern knew one dialect, the one key that both share hid the miss, and the format came from a config
field that both exporters set.
"""

import json
from itertools import product

import pytest
import torch

from nvfp4_suite.contract.banks import ExpertBanks
from nvfp4_suite.contract.case import hashed
from nvfp4_suite.contract.checkpoint import load_experts
from nvfp4_suite.reference import formats, moe

from ..poison import poisoned_allocations
from .checkpoints import tiny, write
from .test_checkpoint_forms import bits

LAYERS, EXPERTS = (0, 1), 2
FIELDS = [f"{bank}_{role}" for bank in ("gate_up", "down") for role in ("packed", "scale", "global")]


def modelopt() -> dict:
    return tiny("modelopt", layers=LAYERS)


def compressed() -> dict:
    return tiny("compressed_tensors", layers=LAYERS)


def mixed_precision() -> dict:
    """NVFP4 experts beside attention in FP8, whose scales have the name that the dialects share."""
    attention = {}
    for layer, name in product(LAYERS, "qkvo"):
        key = f"model.layers.{layer}.self_attn.{name}_proj"
        attention[f"{key}.weight"] = torch.zeros(32, 32, dtype=torch.float8_e4m3fn)
        attention[f"{key}.weight_scale"] = torch.ones(32, 1)
    return compressed() | attention


FORMS = [(modelopt, "modelopt"), (compressed, "nvfp4-pack-quantized"), (mixed_precision, "mixed-precision")]


def written(folder, tensors: dict, config_format: str):
    """With a config that names the format, rightly or not."""
    (folder / "config.json").write_text(json.dumps({"quantization_config": {"format": config_format}}))
    return write(folder, tensors)


def parts(banks: ExpertBanks, expert: int) -> dict[str, torch.Tensor]:
    return {name: bits(banks)[name][expert] for name in FIELDS}


def sources(tensors: dict, layer: int, expert: int) -> dict[str, torch.Tensor]:
    """What the six banks should hold of an expert, put together from the ModelOpt checkpoint here."""
    of = f"model.layers.{layer}.mlp.experts.{expert}"
    wanted = {}
    for bank, projections in (("gate_up", ("gate", "up")), ("down", ("down",))):
        names = [f"{of}.{projection}_proj" for projection in projections]
        wanted[f"{bank}_packed"] = torch.cat([tensors[f"{name}.weight"] for name in names]).int()
        scales = torch.cat([tensors[f"{name}.weight_scale"] for name in names])
        wanted[f"{bank}_scale"] = scales.view(torch.uint8).int()
        rows = [tensors[f"{name}.weight_scale_2"].expand(len(tensors[f"{name}.weight"])) for name in names]
        wanted[f"{bank}_global"] = torch.cat(rows).view(torch.int32).int()
    return wanted


@pytest.mark.fault("FlashML-org/FreeToken#430")
@pytest.mark.parametrize("config_format", [name for _, name in FORMS])
@pytest.mark.parametrize("form", [form for form, _ in FORMS])
def test_all_six_tensors_of_every_expert_are_placed(form, config_format, tmp_path):
    """layers * experts * 6 of them: bytes equal, globals within 1 ulp, whatever the config says."""
    folder, placed = written(tmp_path, form(), config_format), 0
    for layer, expert in product(LAYERS, range(EXPERTS)):
        with poisoned_allocations():
            banks = load_experts(folder, layer)
        actual, wanted = parts(banks, expert), sources(modelopt(), layer, expert)
        for name in FIELDS:
            assert (actual[name] - wanted[name]).abs().max() <= ("global" in name), (layer, expert, name)
            placed += 1
    assert placed == len(LAYERS) * EXPERTS * 6


@pytest.mark.fault("FlashML-org/FreeToken#430")
def test_one_global_is_missing(tmp_path):
    lost = "model.layers.1.mlp.experts.1.up_proj.weight_scale_2"
    tensors = modelopt()
    del tensors[lost]
    folder = written(tmp_path, tensors, "modelopt")
    with pytest.raises(KeyError, match=rf"{lost} is missing \(expert 1\) from {folder}"):
        load_experts(folder, 1)
    assert load_experts(folder, 0).experts == EXPERTS


@pytest.mark.fault("FlashML-org/FreeToken#430")
@pytest.mark.parametrize("form", [compressed, mixed_precision])
def test_input_scales_are_read_by_w4a4_alone(form, tmp_path):
    """Twice the divisor: W4A16 gives the same bytes, W4A4 quantizes with half the scale."""
    tensors = form()
    halved = {key: 2 * t if key.endswith("input_global_scale") else t for key, t in tensors.items()}
    banks = [load_experts(write(tmp_path, each), 0) for each in (tensors, halved)]
    assert torch.equal(banks[1].gate_up_input_scale, banks[0].gate_up_input_scale / 2)
    assert torch.equal(banks[1].down_input_scale, banks[0].down_input_scale / 2)
    x = (hashed("x", 3, 32) / 2**31 - 1).bfloat16()
    ids, weights = torch.tensor([[0, 1]] * 3, dtype=torch.int32), torch.full((3, 2), 0.5)
    one, two = (moe.expert_layer(x, each, weights, ids, rounding="w4a16") for each in banks)
    assert torch.equal(one, two)
    one, two = (moe.expert_layer(x, each, weights, ids, rounding="w4a4") for each in banks)
    assert not torch.equal(one, two)


def matrix(divisor: bool) -> dict[str, torch.Tensor]:
    """A layer with hidden 64 and intermediate 128 (128x4 block scales: a swizzle moves them), all amaxes 2.0."""
    tensors = {}
    for projection, (n, k) in {"gate_proj": (128, 64), "up_proj": (128, 64), "down_proj": (64, 128)}.items():
        name = f"model.layers.0.mlp.experts.0.{projection}"
        codes, scale = hashed(name, n, k // 2) & 0xFF, 1 + torch.arange(n * k // 16).reshape(n, k // 16) % 126
        tensors[f"{name}.{'weight_packed' if divisor else 'weight'}"] = codes.to(torch.uint8)
        tensors[f"{name}.weight_scale"] = scale.to(torch.uint8).view(torch.float8_e4m3fn)
        value = torch.tensor([1344.0]) if divisor else torch.tensor(2 / 2688)
        tensors[f"{name}.{'weight_global_scale' if divisor else 'weight_scale_2'}"] = value
    return tensors


@pytest.mark.fault("modular/modular#6600")
def test_amax_2_in_both_dialects(tmp_path):
    """The fault is modular/modular#6600: a divisor taken as a multiplier (off by 1344 ** 2), scales swizzled twice."""
    one, two = (load_experts(write(tmp_path, matrix(divisor)), 0) for divisor in (False, True))
    scales = 1 + torch.arange(512).reshape(128, 4) % 126
    for banks in (one, two):
        assert torch.equal(banks.gate_up_scale[0].view(torch.uint8).long(), torch.cat([scales, scales]))
        assert torch.equal(banks.gate_up_global, torch.full((1, 256), 2 / 2688))
    weights = [formats.dequantize(b.gate_up_packed, b.gate_up_scale, b.gate_up_global) for b in (one, two)]
    assert torch.equal(*weights) and weights[0].abs().max() > 1
