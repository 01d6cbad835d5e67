"""Layers of several formats in one model: each is told, loaded and bound by itself, input scales and all.

The fault that this forbids (FlashML-org/FreeToken#723, known issue 1): beside layers in bf16, layers with input scales
are refused, because their kernel keeps these scales on the GPU.
"""

import pytest
import torch
from safetensors.torch import load_file

from nvfp4_suite.contract.banks import ExpertBanks
from nvfp4_suite.contract.binding import bind
from nvfp4_suite.contract.checkpoint import load_experts, load_layer
from nvfp4_suite.contract.dense_banks import DenseBanks
from nvfp4_suite.contract.layer_formats import LayerFormat, describe
from nvfp4_suite.reference import moe

from .checkpoints import DATA, FOLDERS, dense, tiny, write
from .mixed import Stub, write_mixed
from .test_checkpoint_forms import assert_same

MODELOPT, COMPRESSED = FOLDERS.values()
SHAPE = {"experts": 4, "hidden": 384, "intermediate": 96}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_mixed(tmp_path_factory.mktemp("mixed"))


@pytest.fixture(scope="module")
def layers(folder):
    return {layer: load_layer(folder, layer) for layer in describe(folder)}


def test_what_each_layer_holds(folder):
    assert describe(folder) == {
        0: LayerFormat("nvfp4", **SHAPE, input_scales=True, dialects=("ModelOpt",)),
        1: LayerFormat("bf16", **SHAPE),
        2: LayerFormat("nvfp4", **SHAPE, input_scales=True, dialects=("compressed-tensors",)),
        3: LayerFormat("nvfp4", **SHAPE, dialects=("ModelOpt",)),
    }


def test_what_each_layer_holds_in_words(folder):
    shape = "4 experts, hidden 384, intermediate 96"
    assert [str(form) for form in describe(folder).values()] == [
        f"nvfp4 with input scales: {shape}, ModelOpt",
        f"bf16: {shape}",
        f"nvfp4 with input scales: {shape}, compressed-tensors",
        f"nvfp4: {shape}, ModelOpt",
    ]


def test_a_layer_that_cannot_be_read_does_not_hide_the_others(tmp_path):
    fp8 = {key: t.to(torch.float8_e4m3fn) for key, t in dense(layers=(1,)).items()}
    folder = write(tmp_path, tiny("modelopt") | fp8)
    problem = describe(folder)[1].problem
    assert "experts.0.down_proj.weight is F8_E4M3, but should be U8" in problem
    assert str(describe(folder)[1]) == f"cannot be read: {problem}"
    assert describe(folder)[0].kind == "nvfp4"


def test_each_layer_is_that_of_its_source(layers):
    """Both fixtures have input scales for every projection; layer 3 has lost them."""
    assert_same(layers[0], load_experts(MODELOPT, 0))
    assert_same(layers[2], load_experts(COMPRESSED, 0))
    assert_same(layers[3], load_experts(MODELOPT, 1).without_input_scales())
    assert [banks.formats for banks in layers.values()] == [("w4a4", "w4a16"), ("bf16",), ("w4a4", "w4a16"), ("w4a16",)]


def test_dense_layer_gives_the_output_of_its_tool(layers):
    """To 1e-12 of the largest output, as the tool's own dequantized weights do (test_checkpoint.py)."""
    io = load_file(DATA / "layer_io.safetensors")
    weights = layers[1].gate_up.double(), layers[1].down.double()
    actual = moe.dense_layer(io["hidden_states"], *weights, io["topk_weights"], io["topk_ids"])
    expected = io["compressed_tensors.layer1"]
    assert (actual - expected).abs().max() <= 1e-12 * expected.abs().max()


def test_every_layer_binds_a_kernel_that_takes_it(layers):
    kernels = {"prefill": Stub("w4a16"), "both": Stub("w4a16", "w4a4"), "plain": Stub("bf16", "fp16")}
    bound = bind(layers, kernels)
    assert {layer: kernel for layer, (kernel, _) in bound.items()} == {0: "both", 1: "plain", 2: "both", 3: "prefill"}
    assert all(bound[layer].banks is banks for layer, banks in layers.items())
    assert bound[0].banks.gate_up_input_scale is not None and bound[2].banks.down_input_scale is not None


def test_input_scales_alone_call_for_nothing(layers):
    """Where no kernel quantizes activations, W4A16 serves the layer."""
    assert bind({0: layers[0]}, {"prefill": Stub("w4a16")})[0].kernel == "prefill"


def test_layer_that_no_kernel_takes(layers):
    message = r"layer 1 has experts for bf16, which no kernel takes: prefill \(w4a16\), both \(w4a16 and w4a4\)"
    with pytest.raises(ValueError, match=message):
        bind(layers, {"prefill": Stub("w4a16"), "both": Stub("w4a16", "w4a4")})
    with pytest.raises(ValueError, match=r"layer 3 has experts for w4a16, which no kernel takes: none"):
        bind({3: layers[3]}, {})


def test_load_experts_refuses_what_is_not_quantized(folder):
    with pytest.raises(TypeError, match=r"layer 1 has bf16 experts.*experts\.0.*model-\d\.safetensors"):
        load_experts(folder, 1)


def test_banks_of_a_layer_are_of_one_kind(layers):
    assert [type(banks) for banks in layers.values()] == [ExpertBanks, DenseBanks, ExpertBanks, ExpertBanks]


# What else is in the layer, what is said.
UNEVEN = [
    (
        "expert",
        {k: t for k, t in dense(experts=3).items() if ".2." in k},
        "formats, bf16 .*experts.2.*and nvfp4",
    ),
    ("weight", {"model.layers.0.mlp.experts.1.down_proj.weight": torch.zeros(32, 16).bfloat16()}, "of several formats"),
]


@pytest.mark.parametrize(("others", "message"), [u[1:] for u in UNEVEN], ids=[u[0] for u in UNEVEN])
def test_experts_of_several_formats_in_one_layer(others, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load_layer(write(tmp_path, tiny("modelopt") | others), 0)


def test_dense_weights_of_two_dtypes(tmp_path):
    tensors = dense()
    key = "model.layers.0.mlp.experts.1.up_proj.weight"
    with pytest.raises(ValueError, match=r"several formats, bf16 \(.*and fp16 \(.*1.up_proj.weight"):
        load_layer(write(tmp_path, tensors | {key: tensors[key].half()}), 0)
