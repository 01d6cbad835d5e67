"""load_experts refuses what it cannot read right, and says which tensor and why."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from nvfp4_suite.contract.checkpoint import load_experts

from .checkpoints import TINY_SHAPES, tiny, write, write_sharded

M, C = "modelopt", "compressed_tensors"
GATE, UP, DOWN, W3 = (f"model.layers.0.mlp.experts.{x}." for x in ("0.gate_proj", "1.up_proj", "1.down_proj", "1.w3"))
INF, NAN = float("inf"), float("nan")


def drop(pattern: str):
    """A change that removes every tensor whose key matches."""
    return lambda tensors: {key: t for key, t in tensors.items() if not re.search(pattern, key)}


def put(key: str, tensor):
    """A change that puts `tensor`, or what it makes of the present one, under `key`."""
    return lambda tensors: tensors | {key: tensor(tensors[key]) if callable(tensor) else tensor}


def move(old: str, new: str):
    """A change of keys."""
    return lambda tensors: {key.replace(old, new): t for key, t in tensors.items()}


def byte(row: int, block: int, value: int):
    """Block scales with the byte `value` at one place."""

    def changed(scale: torch.Tensor) -> torch.Tensor:
        codes = scale.view(torch.uint8).clone()
        codes[row, block] = value
        return codes.view(torch.float8_e4m3fn)

    return changed


def rows(count: int):
    """The first `count` rows."""
    return lambda tensor: tensor[:count].clone()


def f32(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float32)


def u8(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


def only_weights(dtype: torch.dtype):
    """A change that leaves the weights alone, one element of `dtype` for every weight."""
    return lambda tensors: {
        key: torch.zeros(TINY_SHAPES[key.split(".")[-2]], dtype=dtype) for key in tensors if key.endswith(".weight")
    }


NAN_AT = r"1.up_proj.weight_scale is NaN at row 3, block 1.*\(up of expert 1, .*model\.safetensors\)"
INF_AT = r"1.up_proj.weight_scale_2 is inf.*\(up of expert 1, .*model\.safetensors\)"

# name, dialect, change to the tiny checkpoint (layer 0, experts 0 and 1, hidden 32, intermediate 16), what is said
KEY_ERRORS = [
    ("codes", M, drop(UP + "weight$"), r"experts.1.up_proj.weight is missing \(expert 1\)"),
    ("scale", M, drop(UP + "weight_scale$"), r"experts.1.up_proj.weight_scale is missing \(expert 1\)"),
    ("global", M, drop(UP + "weight_scale_2"), r"experts.1.up_proj.weight_scale_2 is missing \(expert 1\)"),
    ("input", M, drop(UP + "input_scale"), r"experts.1.up_proj.input_scale is missing \(expert 1\)"),
    ("ct-codes", C, drop(UP + "weight_packed"), r"experts.1.up_proj.weight_packed is missing \(expert 1\)"),
    ("ct-scale", C, drop(UP + "weight_scale$"), r"experts.1.up_proj.weight_scale is missing \(expert 1\)"),
    ("ct-global", C, drop(UP + "weight_global"), r"experts.1.up_proj.weight_global_scale is missing \(expert 1\)"),
    ("ct-input", C, drop(UP + "input"), r"experts.1.up_proj.input_global_scale is missing \(expert 1\)"),
    (
        "all-but-scale",
        M,
        drop(UP + "(weight|.*2|input.*)$"),
        "up_proj.weight or weight_packed is missing",
    ),
    ("input-of-some", M, drop("(gate|up)_proj.input"), "experts.0.gate_proj.input_scale is missing"),
    ("projection", M, drop(UP), "no tensor for up of expert 1"),
    ("expert", M, drop("experts.0"), "no tensor for gate of expert 0, up of expert 0, down of expert 0"),
    ("name", M, move("down_proj", "out_proj"), "no tensor for down of expert 0, down of expert 1"),
    ("layer", M, move("layers.0", "layers.3"), r"layer 0 has no routed experts in .*; layers that have: \[3\]"),
    ("no-layer", M, move("experts", "linear"), r"layer 0 has no routed experts in .*; layers that have: \[\]"),
]
TYPE_ERRORS = [
    ("bf16", M, only_weights(torch.bfloat16), "layer 0 has bf16 experts, but should have NVFP4: .*experts.0.*weight"),
    ("fp8", M, only_weights(torch.float8_e4m3fn), "experts.0.*weight is F8_E4M3, but should be U8 in NVFP4 experts"),
    ("int4", C, put(UP + "weight_packed", torch.Tensor.int), "1.up_proj.weight_packed is I32, but should be U8"),
    ("mxfp4", M, put(UP + "weight_scale", u8(16, 2)), "1.up_proj.weight_scale is U8, but should be F8_E4M3"),
    (
        "global",
        M,
        put(UP + "weight_scale_2", torch.Tensor.double),
        "1.up_proj.weight_scale_2 is F64, but should be F32",
    ),
    ("input", M, put(UP + "input_scale", torch.Tensor.half), "1.up_proj.input_scale is F16, but should be F32"),
]
VALUE_ERRORS = [
    (
        "nan",
        M,
        put(UP + "weight_scale", byte(3, 1, 0x7F)),
        NAN_AT,
    ),
    ("-nan", C, put(DOWN + "weight_scale", byte(31, 0, 0xFF)), "1.down_proj.weight_scale is NaN at row 31, block 0"),
    ("global-nan", M, put(UP + "weight_scale_2", f32(NAN)), "1.up_proj.weight_scale_2 is nan"),
    (
        "global-inf",
        M,
        put(UP + "weight_scale_2", f32(INF)),
        INF_AT,
    ),
    ("global-0", M, put(UP + "weight_scale_2", f32(0)), "1.up_proj.weight_scale_2 is 0.0"),
    ("global-neg", M, put(UP + "weight_scale_2", f32(-1)), "1.up_proj.weight_scale_2 is -1.0"),
    ("divisor-nan", C, put(UP + "weight_global_scale", f32(NAN)), "1.up_proj.weight_global_scale is nan"),
    ("divisor-inf", C, put(UP + "weight_global_scale", f32(INF)), "1.up_proj.weight_global_scale is inf"),
    ("divisor-0", C, put(UP + "weight_global_scale", f32(0)), "1.up_proj.weight_global_scale is 0.0"),
    ("divisor-neg", C, put(UP + "weight_global_scale", f32(-1)), "1.up_proj.weight_global_scale is -1.0"),
    ("divisor-tiny", C, put(UP + "weight_global_scale", f32(1e-40)), "weight_global_scale is .*, as a multiplier inf"),
    ("input-inf", M, put(UP + "input_scale", f32(INF)), "1.up_proj.input_scale is inf"),
    ("input-0", C, put(UP + "input_global_scale", f32(0)), "1.up_proj.input_global_scale is 0.0"),
    ("rows", M, put(UP + "weight", rows(15)), r"1.up_proj.weight has shape \[15, 16\], but should be \[16, 16\]"),
    (
        "blocks",
        M,
        put(UP + "weight_scale", rows(8)),
        r"up_proj.weight_scale has shape \[8, 2\], but should be \[16, 2\]",
    ),
    ("down", C, put(DOWN + "weight_packed", u8(16, 16)), r"has shape \[16, 16\], but should be \[32, 8\]"),
    ("per-row", M, put(UP + "weight_scale_2", torch.ones(16)), r"has shape \[16\], but should be \[\] or \[1\]"),
    (
        "flat",
        M,
        put(GATE + "weight", torch.Tensor.flatten),
        r"0.gate_proj.weight has shape \[256\], but should be \[16",
    ),
    ("ragged-rows", M, put(GATE + "weight", rows(8)), r"has shape \[8, 16\], but should be \[16 x i, 8 x j\]"),
    ("ragged-k", M, put(GATE + "weight", u8(16, 12)), r"has shape \[16, 12\], but should be \[16 x i, 8 x j\]"),
    ("empty", M, put(GATE + "weight", rows(0)), r"has shape \[0, 16\], but should be \[16 x i, 8 x j\]"),
    ("both", M, put(UP + "weight_packed", u8(16, 16)), "experts.1.up_proj has tensors of both dialects"),
    ("mixed", C, move(UP + "weight_global_scale", UP + "weight_scale_2"), "1.up_proj has tensors of both dialects"),
    ("twice", M, put(W3 + "weight", u8(16, 16)), "up_proj.weight and .*w3.weight are the same tensor of expert 1"),
    ("bias", M, put(UP + "bias", f32(0)), "1.up_proj.bias is no tensor of NVFP4 experts"),
    ("awq", M, put(UP + "pre_quant_scale", f32(1)), "1.up_proj.pre_quant_scale is no tensor of NVFP4 experts"),
]
ERRORS = [(KeyError, *line) for line in KEY_ERRORS]
ERRORS += [(TypeError, *line) for line in TYPE_ERRORS]
ERRORS += [(ValueError, *line) for line in VALUE_ERRORS]


@pytest.mark.parametrize(
    ("error", "dialect", "change", "message"),
    [pytest.param(error, *line, id=f"{error.__name__}-{name}") for error, name, *line in ERRORS],
)
def test_error(error, dialect, change, message, tmp_path):
    with pytest.raises(error, match=message) as caught:
        load_experts(write(tmp_path, change(tiny(dialect))), 0)
    assert str(tmp_path) in str(caught.value)


def test_tiny_checkpoint_itself_loads(tmp_path):
    """Else every error above could be another one."""
    for dialect in (M, C):
        assert load_experts(write(tmp_path, tiny(dialect)), 0).experts == 2


def test_path_is_not_there(tmp_path):
    for path in (tmp_path / "absent", tmp_path / "absent.safetensors", tmp_path / "absent.index.json"):
        with pytest.raises(FileNotFoundError, match=path.name):
            load_experts(path, 0)


def test_folder_without_a_checkpoint(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        load_experts(tmp_path, 0)


def test_shard_of_the_index_is_not_there(tmp_path):
    write_sharded(tmp_path, tiny(M))
    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model-1\.safetensors"):
        load_experts(tmp_path, 0)


def test_shard_lacks_a_tensor_of_the_index(tmp_path):
    write_sharded(tmp_path, tiny(M))
    lost = UP + "weight_scale"
    shard = tmp_path / json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"][lost]
    save_file({key: t for key, t in load_file(shard).items() if key != lost}, shard)
    with pytest.raises(KeyError, match=rf"{lost} is missing from .*{shard.name}"):
        load_experts(tmp_path, 0)


def test_file_was_not_copied_to_its_end(tmp_path):
    file = write(tmp_path, tiny(M)) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"model\.safetensors is not a complete safetensors file"):
        load_experts(tmp_path, 0)
