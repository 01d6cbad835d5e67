"""load_layer on fused experts: the bytes that experts of their own give, from every published form."""

import hashlib
import json
from itertools import product

import pytest
import torch
from safetensors.torch import load_file

from nvfp4_suite.contract.checkpoint import load_experts, load_layer
from nvfp4_suite.contract.layer_formats import describe

from .checkpoints import DATA, FOLDERS, dense, tiny, write, write_sharded
from .fused import flat, fused, of_layer, one_scalar, scalar_per_expert, transposed
from .test_checkpoint import PROJECTIONS, tool_weight
from .test_checkpoint_forms import assert_same

M, C = "modelopt", "compressed_tensors"


def first(scalars):
    return scalars[:, 0]


# name, dialect, what the source has in common, separator, matrices, scalars
FORMS = [
    ("llm-compressor", C, None, ".", lambda t: t, lambda t: t),
    ("modelopt-llama4", M, one_scalar, "_", transposed, of_layer),
    ("freetoken-flat", C, one_scalar, ".", flat, lambda t: t[0, :1]),
    ("modelopt-dotted", M, None, ".", lambda t: t, lambda t: t),
    ("scalar-per-expert", M, scalar_per_expert, "_", lambda t: t, first),
    ("plain-layer-scalar", C, one_scalar, ".", lambda t: t, of_layer),
]
IDS = [name for name, *_ in FORMS]


def fused_and_own(form, **options) -> tuple[dict, dict]:
    _, dialect, change, separator, matrix, scalars = form
    own = tiny(dialect, **options)
    own = change(own) if change else own
    return fused(own, separator, matrix, scalars), own


@pytest.mark.parametrize("form", FORMS, ids=IDS)
@pytest.mark.parametrize("experts", [1, 2, 5])
def test_fused_experts_give_the_bytes_of_their_own(form, experts, tmp_path):
    joined, own = fused_and_own(form, experts=experts)
    assert len(joined) == 8
    expected = load_experts(write(tmp_path, own), 0)
    assert_same(load_experts(write(tmp_path, joined), 0), expected)
    assert_same(load_experts(write_sharded(tmp_path, joined, shards=8), 0), expected)


@pytest.mark.parametrize("form", FORMS, ids=IDS)
def test_no_input_scales(form, tmp_path):
    joined, own = fused_and_own(form, input_scales=False)
    assert_same(load_experts(write(tmp_path, joined), 0), load_experts(write(tmp_path, own), 0))


@pytest.mark.fault("vllm-project/vllm#54974")
def test_gate_and_up_keep_their_own_scalars(tmp_path):
    """[E, 2] holds the gate's and the up's global of each expert (vllm-project/vllm#54974)."""
    joined = fused(tiny(M), "_")
    joined["model.layers.0.mlp.experts.gate_up_proj_weight_scale_2"] = torch.tensor([[1.0, 0.25], [0.25, 1.0]])
    joined["model.layers.0.mlp.experts.gate_up_proj_input_scale"] = torch.tensor([[0.5, 2.0], [4.0, 1.0]])
    banks = load_experts(write(tmp_path, joined), 0)
    assert banks.gate_up_global.tolist() == [[1.0] * 16 + [0.25] * 16, [0.25] * 16 + [1.0] * 16]
    assert banks.gate_up_input_scale.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("tool", FOLDERS)
def test_fixtures_of_both_tools_fused(tool, tmp_path):
    """Real weights, 4 experts, hidden 384 and intermediate 96, in the plain form."""
    own = load_file(FOLDERS[tool] / "model.safetensors")
    folder = write(tmp_path, fused(own, "."))
    for layer in (0, 1):
        assert_same(load_experts(folder, layer), load_experts(FOLDERS[tool], layer))


def test_modelopt_itself_fused():
    """Its export of a Llama 4 gives the weights that its own dequantize gives, bit for bit."""
    folder = DATA / "modelopt-llama4"
    expected = json.loads((folder / "expected.json").read_text())["dequantized_sha256"]
    banks = load_experts(folder, 0)
    assert str(describe(folder)[0]) == (
        "nvfp4 with input scales: 4 experts, hidden 64, intermediate 32, ModelOpt, fused"
    )
    actual = {}
    for expert, projection in product(range(banks.experts), PROJECTIONS):
        weight = tool_weight("modelopt", banks, expert, projection, stored=None)
        digest = hashlib.sha256(weight.numpy().astype("<f4").tobytes()).hexdigest()
        actual[f"{expert}.{projection}_proj"] = digest
    assert actual == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("matrix", [lambda t: t, transposed], ids=["plain", "transposed"])
def test_unquantized(matrix, dtype, tmp_path):
    own = dense(dtype=dtype)
    expected = load_layer(write(tmp_path, own), 0)
    banks = load_layer(write(tmp_path, fused(own, "_", matrix)), 0)
    assert torch.equal(banks.gate_up, expected.gate_up) and torch.equal(banks.down, expected.down)
    assert banks.gate_up.dtype == dtype


def test_layers_of_several_forms_in_one_file(tmp_path):
    layers = {0: fused(tiny(M, layers=(0,)), "_"), 1: tiny(C, layers=(1,)), 2: fused(tiny(C, layers=(2,)), ".")}
    folder = write(tmp_path, layers[0] | layers[1] | layers[2])
    assert [form.fused for form in describe(folder).values()] == [True, False, True]
    assert [form.dialects for form in describe(folder).values()] == [
        ("ModelOpt",),
        ("compressed-tensors",),
        ("compressed-tensors",),
    ]
    for layer, own in enumerate((tiny(M, layers=(0,)), tiny(C, layers=(1,)), tiny(C, layers=(2,)))):
        alone = tmp_path / str(layer)
        alone.mkdir()
        assert_same(load_experts(folder, layer), load_experts(write(alone, own), layer))


GATE_UP, DOWN = "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"


def bad_byte(scale: torch.Tensor) -> torch.Tensor:
    """NaN in the up rows of expert 1: row 16 + 3 of gate_up, block 1."""
    codes = scale.view(torch.uint8).clone()
    codes[1, 19, 1] = 0x7F
    return codes.view(torch.float8_e4m3fn)


def changed(key: str, change):
    return lambda tensors: tensors | {key: change(tensors[key]).contiguous()}


def without(key: str):
    return lambda tensors: {k: t for k, t in tensors.items() if k != key}


def filled(value: float, expert: int, half: int):
    def change(scalars: torch.Tensor) -> torch.Tensor:
        scalars = scalars.clone()
        scalars[expert, half] = value
        return scalars

    return change


ERRORS = [
    (
        "nan",
        ValueError,
        changed(GATE_UP + "_weight_scale", bad_byte),
        "scale is NaN at row 3, block 1.*up of expert 1, ",
    ),
    ("inf", ValueError, changed(GATE_UP + "_weight_scale_2", filled(float("inf"), 1, 0)), "is inf.*gate of expert 1, "),
    ("zero", ValueError, changed(DOWN + "_input_scale", filled(0.0, 0, 0)), "is 0.0.*down of expert 0, "),
    (
        "no-scale",
        KeyError,
        without(GATE_UP + "_weight_scale"),
        "gate_up_proj_weight_scale is missing .expert 0. from /",
    ),
    ("no-global", KeyError, without(DOWN + "_weight_scale_2"), "down_proj_weight_scale_2 is missing"),
    ("no-input", KeyError, without(DOWN + "_input_scale"), "down_proj_input_scale is missing"),
    ("no-codes", KeyError, without(DOWN), "experts.down_proj is missing .expert 0."),
    ("count", ValueError, changed(DOWN + "_weight_scale_2", lambda t: t.new_ones(3)), r"\[3\], but should be \[\] or"),
    ("experts", KeyError, changed(DOWN, lambda t: t[:1]), "down_proj is missing .expert 1."),
    ("rows", ValueError, changed(DOWN, lambda t: t[:, :16]), r"has shape \[16, 8\], but should be \[32, 8\]"),
    ("vector", ValueError, changed(DOWN, torch.flatten), r"\[512\], but should be \[experts, rows, columns\]"),
    ("bias", ValueError, lambda t: t | {GATE_UP + "_bias": torch.zeros(2, 32)}, "_bias is no tensor.*have no bias"),
    (
        "mxfp4",
        ValueError,
        lambda t: t | {GATE_UP + "_blocks": torch.zeros(2, 32)},
        "_proj_blocks is no tensor of",
    ),
    ("both", ValueError, lambda t: t | tiny(M), "are the same tensor of expert 0"),
]


@pytest.mark.parametrize(("error", "change", "message"), [e[1:] for e in ERRORS], ids=[e[0] for e in ERRORS])
def test_error(error, change, message, tmp_path):
    with pytest.raises(error, match=message) as caught:
        load_experts(write(tmp_path, change(fused(tiny(M), "_"))), 0)
    assert str(tmp_path) in str(caught.value)
