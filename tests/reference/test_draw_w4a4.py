"""Drawn W4A4 layers use the whole format on both sides, and notice every fault in quantization and in its scales."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from nvfp4_suite.reference import formats, moe, quantize
from nvfp4_suite.reference.rounding import rounding_form

from .drawn import BF16_W4A4, VARIED_W4A4, drawn, output, with_banks

FORM = rounding_form("w4a4", torch.bfloat16)
LARGE = [case for case in VARIED_W4A4 if case.activation == "silu"]


# Richness


def quantized_by(monkeypatch, case) -> dict[str, list[tuple[torch.Tensor, torch.Tensor]]]:
    """What the quantizer gave while the reference computed `case`: (codes, scales) of the gate_up and down inputs."""
    seen, width = {"gate_up": [], "down": []}, case.shape.hidden
    original = quantize.quantize

    def noted(x, global_scale, recipe):
        packed, scale = original(x, global_scale, recipe)
        seen["gate_up" if x.shape[-1] == width else "down"].append((formats.unpack(packed), scale))
        return packed, scale

    monkeypatch.setattr(quantize, "quantize", noted)
    output(drawn(case), case)
    return seen


@pytest.mark.parametrize("case", LARGE)
def test_activations_use_every_code_and_many_scales(case, monkeypatch):
    for name, found in quantized_by(monkeypatch, case).items():
        codes, scale = (torch.cat([pair[i].flatten() for pair in found]) for i in (0, 1))
        assert set(codes.tolist()) == set(range(16)), name
        normal = scale[scale >= 8]
        assert len((scale >> 3).unique()) >= 2 and len((normal & 7).unique()) >= 5, name
        assert len(scale.unique()) >= 8, name


@pytest.mark.parametrize("case", LARGE)
def test_weights_use_every_code_scale_mantissa_and_most_exponents(case):
    banks, rows = drawn(case).banks, case.shape.intermediate
    parts = [(banks.gate_up_packed[:, part], banks.gate_up_scale[:, part]) for part in (slice(rows), slice(rows, None))]
    for packed, scale in [*parts, (banks.down_packed, banks.down_scale)]:
        byte = scale.view(torch.uint8)
        assert set(formats.unpack(packed).unique().tolist()) == set(range(16))
        assert set((byte & 7).unique().tolist()) == set(range(8)) and len((byte >> 3).unique()) >= 14


@pytest.mark.parametrize("case", LARGE)
def test_inputs_lie_at_ties_and_an_fp32_rounding_beside_them(case, monkeypatch):
    """Both quantizers meet exact midpoints, and the second one values within 4 ulps of fp32 beside one."""
    exact, near = {case.shape.hidden: 0, case.shape.intermediate: 0}, 0
    original = quantize._vllm_codes

    def noted(x, scale, s_global):
        nonlocal near
        s = formats.decode_e4m3(scale)
        y = (x * torch.where(s == 0, 0.0, s_global / s).unsqueeze(-1)).abs()
        beside = [(y - middle).abs() / (middle * 2.0**-23) for middle in quantize.E2M1_MIDPOINTS]
        distance = torch.stack(beside).amin(0)
        exact[16 * x.shape[-2]] += int((distance == 0).sum())
        near += int(((distance > 0) & (distance <= 4)).sum())
        return original(x, scale, s_global)

    monkeypatch.setitem(quantize.RECIPES, "vllm", replace(quantize.RECIPES["vllm"], codes=noted))
    output(drawn(case), case)
    assert (exact[case.shape.hidden] > 20 or case.weight_on_input) and exact[case.shape.intermediate] > 5
    assert near > 50


# Faults


def changed_quantizer(change):
    """A fault: what the quantizer stores, changed."""
    original = quantize.quantize
    return lambda patch: patch.setattr(quantize, "quantize", lambda *arguments: change(*original(*arguments)))


def ties_away(x: torch.Tensor) -> torch.Tensor:
    codes = torch.bucketize(x.abs(), torch.tensor(quantize.E2M1_MIDPOINTS), right=True).to(torch.uint8)
    return codes | (torch.signbit(x).to(torch.uint8) << 3)


def scales_towards_zero(x: torch.Tensor) -> torch.Tensor:
    byte = formats.encode_e4m3(x)
    return torch.where(formats.decode_e4m3(byte) > x, byte - 1, byte)


def with_encoder(name: str, encode):
    """A fault: the quantizer's rounding `name` of formats is `encode`."""

    def plant(patch):
        patch.setattr(quantize, "formats", SimpleNamespace(**(vars(formats) | {name: encode})))

    return plant


def with_form(**changes):
    """A fault: the layer rounds at other points."""
    original = moe.rounding_form

    def changed(*arguments):
        form = original(*arguments)
        return replace(form, **{name: getattr(form, value) for name, value in changes.items()})

    return lambda patch: patch.setattr(moe, "rounding_form", changed)


def h_in_d(patch):
    original = moe.activate
    patch.setattr(moe, "activate", lambda gate, up, activation, form: form.narrow(original(gate, up, activation, form)))


def alpha_in_two_steps(patch):
    """sum * input scale, rounded, * weight global."""
    original = moe._alpha

    def split(name, global_scale, input_scale, form):
        _, largest = original(name, global_scale, input_scale, form)
        return global_scale.double(), largest

    def gate_up(x, weight, global_scale, form):
        sums = form.fp32(moe._sums(x, weight))
        return form.fp32(form.fp32(sums * split.input_scale) * global_scale).chunk(2, dim=1)

    split.input_scale = drawn(BF16_W4A4).banks.gate_up_input_scale.max().double()
    patch.setattr(moe, "_alpha", lambda *a: split(*a) if a[0] == "gate_up" else original(*a))
    patch.setattr(moe, "gate_up", gate_up)


QUANTIZER_FAULTS = {
    "nibbles of codes swapped": changed_quantizer(lambda packed, scale: (packed << 4 | packed >> 4, scale)),
    "scales one block late": changed_quantizer(lambda packed, scale: (packed, scale.roll(1, dims=-1))),
    "last block lost": changed_quantizer(
        lambda packed, scale: (packed, torch.cat([scale[..., :-1], 0 * scale[..., -1:]], dim=-1))
    ),
    "scale mantissas dropped": changed_quantizer(lambda packed, scale: (packed, scale & 0x78)),
    "code 7 read as 6": changed_quantizer(
        lambda packed, scale: (formats.pack(formats.unpack(packed) - (formats.unpack(packed) % 8 == 7).byte()), scale)
    ),
    "ties rounded away": with_encoder("encode_e2m1", ties_away),
    "scales rounded towards zero": with_encoder("encode_e4m3", scales_towards_zero),
    "gate and up in d": with_form(between="narrow"),
    "h in d": h_in_d,
}


@pytest.mark.parametrize("plant", QUANTIZER_FAULTS.values(), ids=QUANTIZER_FAULTS.keys())
@pytest.mark.parametrize("case", VARIED_W4A4)
def test_a_fault_in_quantization_shows_in_every_token(case, plant, monkeypatch):
    expected = output(drawn(case), case)
    plant(monkeypatch)
    assert (output(drawn(case), case) != expected).any(dim=1).all()


def test_an_alpha_of_two_roundings_shows(monkeypatch):
    expected = output(drawn(BF16_W4A4), BF16_W4A4)
    alpha_in_two_steps(monkeypatch)
    assert (output(drawn(BF16_W4A4), BF16_W4A4) != expected).any(dim=1).double().mean() >= 0.5


SCALE_FAULTS = {
    "mean instead of the largest": lambda scale, other: torch.full_like(scale, scale.mean()),
    "the first expert's": lambda scale, other: torch.full_like(scale, scale[scale < scale.max()][0]),
    "the other GEMM's": lambda scale, other: other,
}


@pytest.mark.parametrize("fault", SCALE_FAULTS.values(), ids=SCALE_FAULTS.keys())
@pytest.mark.parametrize("name", ["gate_up", "down"])
@pytest.mark.parametrize("case", VARIED_W4A4)
def test_a_wrong_input_scale_shows_in_every_token(case, name, fault):
    inputs = drawn(case)
    scales = {one: getattr(inputs.banks, f"{one}_input_scale") for one in ("gate_up", "down")}
    wrong = fault(scales[name], scales["down" if name == "gate_up" else "gate_up"])
    differs = output(with_banks(inputs, **{f"{name}_input_scale": wrong}), case) != output(inputs, case)
    assert differs.any(dim=1).all()


@pytest.mark.parametrize("case", VARIED_W4A4)
def test_a_forgotten_second_input_scale_shows_in_every_token(case):
    inputs = drawn(case)
    forgotten = with_banks(inputs, down_input_scale=torch.ones_like(inputs.banks.down_input_scale))
    assert (output(forgotten, case) != output(inputs, case)).any(dim=1).all()


@pytest.mark.parametrize("name", ["gate_up", "down"])
@pytest.mark.parametrize("case", VARIED_W4A4)
def test_an_alpha_of_each_experts_own_input_scale_shows_in_every_token(case, name):
    """Quantized with the largest, but multiplied by the expert's own: shows where it is not the largest itself."""
    inputs = drawn(case)
    scale, global_scale = (getattr(inputs.banks, f"{name}_{role}") for role in ("input_scale", "global"))
    own = global_scale * (scale / scale.max())[:, None]
    differs = output(with_banks(inputs, **{f"{name}_global": own}), case) != output(inputs, case)
    elsewhere = (scale[inputs.topk_ids.long()] < scale.max()).any(dim=1)
    assert elsewhere.any() and torch.equal(differs.any(dim=1), elsewhere)


RECIPES = [name for name in quantize.RECIPES if name != "vllm"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_another_recipe_shows(recipe):
    """They agree on ordinary data; of these tokens, a third or more tells them apart."""
    shown = [
        (output(drawn(case), case, input_quantization=recipe) != output(drawn(case), case)).any(dim=1)
        for case in VARIED_W4A4
    ]
    assert torch.cat(shown).double().mean() > 0.3


@pytest.mark.parametrize("name", ["gate_up_global", "topk_weights"])
def test_scales_in_bf16_show_in_every_token(name):
    inputs = drawn(BF16_W4A4)
    if name == "topk_weights":
        narrow = replace(inputs, topk_weights=inputs.topk_weights.bfloat16().float())
    else:
        narrow = with_banks(inputs, **{name: getattr(inputs.banks, name).bfloat16().float()})
    assert (output(narrow, BF16_W4A4) != output(inputs, BF16_W4A4)).any(dim=1).all()
