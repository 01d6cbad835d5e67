"""load_experts on the checkpoints of both tools: every byte in its place, and the weights that the tools compute."""

import hashlib
import json
from itertools import product

import pytest
import torch
from safetensors.torch import load_file

from nvfp4_suite.contract.banks import ExpertBanks
from nvfp4_suite.contract.checkpoint import load_experts
from nvfp4_suite.reference import formats, moe

from .checkpoints import DATA, FOLDERS

TOOLS = tuple(FOLDERS)
LAYERS = (0, 1)
PROJECTIONS = ("gate", "up", "down")
NAMES = {
    "modelopt": {"packed": "weight", "scale": "weight_scale", "global": "weight_scale_2"},
    "compressed_tensors": {"packed": "weight_packed", "scale": "weight_scale", "global": "weight_global_scale"},
}


@pytest.fixture(scope="module")
def raw():
    """Every tensor of both fixtures, as the file has it: tool -> key -> tensor."""
    return {tool: load_file(folder / "model.safetensors") for tool, folder in FOLDERS.items()}


def key(layer: int, expert: int, projection: str) -> str:
    return f"model.layers.{layer}.mlp.experts.{expert}.{projection}_proj"


def part(banks: ExpertBanks, expert: int, projection: str, role: str) -> torch.Tensor:
    """The rows of one projection in the bank of `role`: "packed", "scale" or "global"."""
    bank = getattr(banks, f"{'down' if projection == 'down' else 'gate_up'}_{role}")[expert]
    return {"gate": bank[: len(bank) // 2], "up": bank[len(bank) // 2 :], "down": bank}[projection]


def tool_weight(tool: str, banks: ExpertBanks, expert: int, projection: str, stored: torch.Tensor) -> torch.Tensor:
    """The float32 weight [N, K] as `tool` dequantizes it; `stored` is the global in the file.

    The bank holds fl(1 / divisor) for compressed-tensors, which is not enough to repeat its division to the bit.
    """
    codes = formats.unpack(part(banks, expert, projection, "packed"))
    scale = formats.decode_e4m3(part(banks, expert, projection, "scale"))
    if tool == "modelopt":
        codes = torch.where(codes == 8, 0, codes)  # ModelOpt's table has no -0.0
        factor = scale * part(banks, expert, projection, "global")[:, None]
        return formats.decode_e2m1(codes) * factor.repeat_interleave(16, dim=1)
    return (formats.decode_e2m1(codes) * (scale / stored).repeat_interleave(16, dim=1)).bfloat16().float()


def tool_weights(tool: str, layer: int, raw: dict) -> dict[tuple[int, str], torch.Tensor]:
    """`tool_weight` of all (expert, projection) in the layer."""
    banks = load_experts(FOLDERS[tool], layer)
    return {
        (expert, projection): tool_weight(
            tool, banks, expert, projection, raw[tool][f"{key(layer, expert, projection)}.{NAMES[tool]['global']}"]
        )
        for expert, projection in product(range(banks.experts), PROJECTIONS)
    }


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("tool", TOOLS)
def test_weights_are_those_of_the_tool(tool, layer, raw):
    expected = json.loads((DATA / "expected.json").read_text())["dequantized_sha256"]
    for (expert, projection), weight in tool_weights(tool, layer, raw).items():
        digest = hashlib.sha256(weight.numpy().astype("<f4").tobytes()).hexdigest()
        assert digest == expected[f"{tool}.{key(layer, expert, projection)}"]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("tool", TOOLS)
def test_dense_layer_is_that_of_the_tool(tool, layer, raw):
    """To 1e-12 of the largest output: both sides sum in float64, but not in one order (8.1e-16 was seen)."""
    weights = tool_weights(tool, layer, raw)
    experts = range(len(weights) // len(PROJECTIONS))
    gate_up = torch.stack([torch.cat([weights[e, "gate"], weights[e, "up"]]) for e in experts]).double()
    down = torch.stack([weights[e, "down"] for e in experts]).double()
    io = load_file(DATA / "layer_io.safetensors")
    actual = moe.dense_layer(io["hidden_states"], gate_up, down, io["topk_weights"], io["topk_ids"])
    expected = io[f"{tool}.layer{layer}"]
    error = ((actual - expected).abs().max() / expected.abs().max()).item()
    assert error <= 1e-12, f"largest error is {error} of the largest output, but should be at most 1e-12"


@pytest.mark.fault("modular/modular#6600")
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("tool", TOOLS)
def test_every_byte_and_global_lands_in_its_row(tool, layer, raw):
    """A divisor is neither taken as a multiplier nor inverted twice, and linear scales stay linear (modular#6600).

    1 / x in float64, then rounded to fp32, is the correctly rounded fp32 quotient: 53 >= 2 * 24 + 2 bits.
    """
    banks = load_experts(FOLDERS[tool], layer)
    assert (banks.experts, banks.hidden, banks.intermediate) == (4, 384, 96)
    for expert, projection in product(range(banks.experts), PROJECTIONS):
        stored = {role: raw[tool][f"{key(layer, expert, projection)}.{name}"] for role, name in NAMES[tool].items()}
        bank = {role: part(banks, expert, projection, role) for role in NAMES[tool]}
        assert torch.equal(bank["packed"], stored["packed"])
        assert torch.equal(bank["scale"].view(torch.uint8), stored["scale"].view(torch.uint8))
        exact = stored["global"].double() if tool == "modelopt" else 1 / stored["global"].double()
        assert (bank["global"] == exact.float()).all()


@pytest.mark.fault("vllm-project/vllm#54974")
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("tool", TOOLS)
def test_unequal_globals_of_gate_and_up_are_kept(tool, layer):
    """The fused bank does not fall back to one global per expert (vllm#54974). Expert 1 of the fixtures has two."""
    banks = load_experts(FOLDERS[tool], layer)
    differs = [part(banks, e, "gate", "global")[0] != part(banks, e, "up", "global")[0] for e in range(4)]
    assert differs == [False, True, False, False]
