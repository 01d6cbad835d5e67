"""load_experts on every form that a checkpoint comes in: dialects, names, files, shards, neighbours in the file."""

from dataclasses import fields

import pytest
import torch
from safetensors.torch import load_file

from nvfp4_suite.contract.banks import ExpertBanks
from nvfp4_suite.contract.checkpoint import load_experts

from .checkpoints import FOLDERS, tiny, write, write_indexed, write_sharded

TOOLS = tuple(FOLDERS)


def bits(banks: ExpertBanks) -> dict[str, torch.Tensor | None]:
    """Every bank as integers; those of positive fp32 numbers count ulps."""
    by_size = {1: torch.uint8, 4: torch.int32}
    tensors = {f.name: getattr(banks, f.name) for f in fields(banks)}
    return {name: None if t is None else t.view(by_size[t.element_size()]).int() for name, t in tensors.items()}


def assert_same(actual: ExpertBanks, expected: ExpertBanks) -> None:
    for (name, one), two in zip(bits(actual).items(), bits(expected).values(), strict=True):
        assert (one is None and two is None) or torch.equal(one, two), f"{name} differs"


def renamed(tensors: dict, *replacements: tuple[str, str]) -> dict:
    """`tensors` with parts of their keys replaced."""
    for old, new in replacements:
        tensors = {key.replace(old, new): tensor for key, tensor in tensors.items()}
    return tensors


@pytest.fixture(params=TOOLS)
def tool(request):
    return request.param


@pytest.fixture
def expected(tool, tmp_path_factory) -> ExpertBanks:
    """The banks of the plain tiny checkpoint."""
    return load_experts(write(tmp_path_factory.mktemp("plain"), tiny(tool)), 0)


@pytest.mark.parametrize("layer", (0, 1))
def test_shards_give_the_bytes_of_the_single_file(tool, layer, tmp_path):
    folder = write_sharded(tmp_path, load_file(FOLDERS[tool] / "model.safetensors"), shards=3)
    assert_same(load_experts(folder, layer), load_experts(FOLDERS[tool], layer))


def test_path_is_a_folder_a_file_or_an_index(tool, expected, tmp_path):
    for path in (write(tmp_path, tiny(tool)), tmp_path / "model.safetensors", str(tmp_path)):
        assert_same(load_experts(path, 0), expected)
    write_sharded(tmp_path, tiny(tool), shards=2)
    (tmp_path / "model.safetensors").unlink()
    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        assert_same(load_experts(path, 0), expected)


def test_banks_are_on_the_device(tool, expected, device, tmp_path):
    banks = load_experts(write(tmp_path, tiny(tool)), 0, device)
    assert banks.device.type == device
    assert_same(banks.to("cpu"), expected)


def test_shards_of_other_layers_may_be_absent(tool, expected, tmp_path):
    tensors = tiny(tool, layers=(0, 1))
    write_indexed(tmp_path, tensors, {key: f"{key[:14]}.safetensors" for key in tensors})
    (tmp_path / "model.layers.1.safetensors").unlink()
    assert_same(load_experts(tmp_path, 0), expected)


@pytest.mark.parametrize(
    "replacements",
    [
        [("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2"), (".mlp.", ".block_sparse_moe.")],
        [("model.layers", "model.language_model.layers")],
        [("model.layers", "layers"), (".mlp.experts", ".experts")],
    ],
    ids=["mixtral", "multimodal", "bare"],
)
def test_other_names(tool, expected, replacements, tmp_path):
    assert_same(load_experts(write(tmp_path, renamed(tiny(tool), *replacements)), 0), expected)


def test_one_element_globals_may_be_scalars_or_vectors(tool, expected, tmp_path):
    for shape in ((), (1,)):
        tensors = {key: t.reshape(shape) if t.numel() == 1 else t for key, t in tiny(tool).items()}
        assert_same(load_experts(write(tmp_path, tensors), 0), expected)


@pytest.mark.fault("FlashML-org/FreeToken#430")
def test_neighbours_are_left_alone(tool, expected, tmp_path):
    """Attention in fp8 ("mixed-precision", FreeToken#430), a router, a shared expert, another layer, a draft."""
    fp8, bf16 = torch.zeros(32, 32, dtype=torch.float8_e4m3fn), torch.zeros(32, 32, dtype=torch.bfloat16)
    layer = "model.layers.0"
    neighbours = {f"{layer}.self_attn.{name}_proj.weight": fp8.clone() for name in "qkvo"}
    neighbours |= {f"{layer}.self_attn.{name}_proj.weight_scale": torch.ones(32, 1) for name in "qkvo"}
    neighbours |= {f"{layer}.mlp.gate.weight": bf16, f"{layer}.mlp.shared_experts.up_proj.weight": bf16.clone()}
    neighbours |= renamed(tiny("modelopt"), ("model.layers", "mtp.layers")) | tiny("modelopt", layers=(1, 10))
    assert_same(load_experts(write(tmp_path, tiny(tool) | neighbours), 0), expected)


def test_layer_1_is_not_layer_10(tool, tmp_path):
    alone = load_experts(write(tmp_path, tiny(tool, layers=(1,))), 1)
    assert_same(load_experts(write(tmp_path, tiny(tool, layers=(1, 10))), 1), alone)


def test_projections_may_differ_in_dialect(tmp_path):
    both = {name: tiny(name) for name in TOOLS}
    down = {key: t for key, t in both["compressed_tensors"].items() if "down_proj" in key}
    rest = {key: t for key, t in both["modelopt"].items() if "down_proj" not in key}
    banks = load_experts(write(tmp_path, down | rest), 0)
    one, two = (bits(load_experts(write(tmp_path, both[name]), 0)) for name in TOOLS)
    for name, bank in bits(banks).items():
        assert torch.equal(bank, (two if name.startswith("down") else one)[name])


@pytest.mark.fault("FlashML-org/FreeToken#430")
@pytest.mark.fault("modular/modular#6600")
def test_dialects_agree(tmp_path):
    """Same codes, block scales and amax A in both dialects (FreeToken#430, modular#6600): fl(A / 2688) and
    fl(1 / fl(2688 / A)) are at most 2 ulps apart, half an ulp for each own rounding and up to one for the divisor's.
    Over all fp32 amaxes 64.6 % are equal and 0.35 % are two apart."""
    one, two = (bits(load_experts(write(tmp_path, tiny(name, experts=64)), 0)) for name in TOOLS)
    ulps = {name: (bank - two[name]).abs().max().item() for name, bank in one.items()}
    for name, largest in ulps.items():
        assert 1 <= largest <= 2 if "global" in name or "input" in name else largest == 0, f"{name}: {ulps}"


@pytest.mark.fault("modular/modular#6600")
def test_amax_2_gives_one_global(tmp_path):
    """Amax 2: multiplier 2 / 2688, divisor 1344. A reader that mixes them up is off by 1344 ** 2 (modular#6600)."""
    name = "model.layers.0.mlp.experts.0.down_proj"
    stored = {"modelopt": ("weight_scale_2", 2 / 2688), "compressed_tensors": ("weight_global_scale", 1344.0)}
    for tool, (suffix, value) in stored.items():
        tensors = tiny(tool) | {f"{name}.{suffix}": torch.tensor([value])}
        assert (load_experts(write(tmp_path, tensors), 0).down_global[0] == torch.tensor(2 / 2688)).all()


def test_input_scale_is_the_larger_of_gate_and_up(tmp_path):
    tensors = tiny("modelopt")
    for expert, (gate, up) in enumerate([(0.5, 0.25), (2.0, 4.0)]):
        name = f"model.layers.0.mlp.experts.{expert}"
        tensors[f"{name}.gate_proj.input_scale"] = torch.tensor(gate)
        tensors[f"{name}.up_proj.input_scale"] = torch.tensor(up)
        tensors[f"{name}.down_proj.input_scale"] = torch.tensor(expert + 8.0)
    banks = load_experts(write(tmp_path, tensors), 0)
    assert banks.gate_up_input_scale.tolist() == [0.5, 4.0]
    assert banks.down_input_scale.tolist() == [8.0, 9.0]


def test_input_divisors_are_inverted_before_the_larger_is_taken(tmp_path):
    tensors = tiny("compressed_tensors")
    tensors["model.layers.0.mlp.experts.0.gate_proj.input_global_scale"] = torch.tensor([8.0])
    tensors["model.layers.0.mlp.experts.0.up_proj.input_global_scale"] = torch.tensor([2.0])
    assert load_experts(write(tmp_path, tensors), 0).gate_up_input_scale[0] == 0.5


def test_no_input_scales_at_all(tool, expected, tmp_path):
    banks = load_experts(write(tmp_path, tiny(tool, input_scales=False)), 0)
    assert banks.gate_up_input_scale is None and banks.down_input_scale is None
    assert torch.equal(banks.gate_up_global, expected.gate_up_global)


@pytest.mark.fault("vllm-project/vllm#54974")
def test_unequal_globals_each_way_round(tmp_path):
    """Gate 1 and up 0.25 in one expert, the other way round in the next (vllm#54974)."""
    tensors = tiny("modelopt")
    for expert, (gate, up) in enumerate([(1.0, 0.25), (0.25, 1.0)]):
        tensors[f"model.layers.0.mlp.experts.{expert}.gate_proj.weight_scale_2"] = torch.tensor(gate)
        tensors[f"model.layers.0.mlp.experts.{expert}.up_proj.weight_scale_2"] = torch.tensor(up)
    rows = load_experts(write(tmp_path, tensors), 0).gate_up_global
    assert rows.tolist() == [[1.0] * 16 + [0.25] * 16, [0.25] * 16 + [1.0] * 16]


def test_every_finite_scale_byte_passes(tmp_path):
    finite = [byte for byte in range(256) if byte & 0x7F != 0x7F]
    scale = torch.tensor(finite + finite[:2], dtype=torch.uint8).reshape(8, 16, 2)
    tensors = tiny("modelopt", experts=8)
    for expert, bytes_ in enumerate(scale.view(torch.float8_e4m3fn)):
        tensors[f"model.layers.0.mlp.experts.{expert}.gate_proj.weight_scale"] = bytes_.clone()
    banks = load_experts(write(tmp_path, tensors), 0)
    assert torch.equal(banks.gate_up_scale[:, :16].view(torch.uint8), scale)
