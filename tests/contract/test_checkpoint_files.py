"""The index and the config of a checkpoint: what is none, and how many experts a layer should have."""

import json
import re

import pytest

from nvfp4_suite.contract.checkpoint import load_experts, load_layer
from nvfp4_suite.contract.layer_formats import describe

from .checkpoints import FOLDERS, dense, tiny, write, write_sharded
from .fused import fused

M, C = "modelopt", "compressed_tensors"
INDEX = "model.safetensors.index.json"

# What the index is, what is said of it.
NO_INDEX = [
    (b"", "is not JSON"),
    (b'{"weight_map": {', "is not JSON"),
    (b"\xff\xfe", "is not JSON"),
    (b"[]", "holds a JSON list, but should hold an object"),
    (b"null", "holds a JSON NoneType, but should hold an object"),
    (b"{}", "has no weight_map"),
    (b'{"weight_map": null}', "has no weight_map"),
    (b'{"weight_map": ["model-0.safetensors"]}', "has no weight_map"),
    (b'{"weight_map": {"x": 0}}', "has x in 0, but should name a file of its own folder"),
    (b'{"weight_map": {"x": "../y.safetensors"}}', "has x in '../y.safetensors', but should name a file of its own"),
    (b'{"weight_map": {"x": ""}}', "has x in '', but should name a file"),
]


@pytest.mark.parametrize(("content", "message"), NO_INDEX, ids=[str(content) for content, _ in NO_INDEX])
@pytest.mark.parametrize("read", [describe, lambda path: load_layer(path, 0)], ids=["describe", "load_layer"])
def test_index_is_none(read, content, message, tmp_path):
    write_sharded(tmp_path, tiny(M))
    (tmp_path / INDEX).write_bytes(content)
    for path in (tmp_path, tmp_path / INDEX):
        with pytest.raises(ValueError, match=re.escape(f"{tmp_path / INDEX} {message}")):
            read(path)


@pytest.mark.parametrize("name", ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("dialect", [M, C])
def test_last_experts_are_missing_by_the_config(dialect, name, inside, tmp_path):
    config = {name: 4, "vision_config": {"hidden_size": 8}}
    config = {"text_config": config, "num_experts": None} if inside else config
    (tmp_path / "config.json").write_text(json.dumps(config))
    message = rf"no tensor for gate of expert 2, .*down of expert 3 in {tmp_path}.*{name} in .*config\.json is 4"
    for tensors in (tiny(dialect), fused(tiny(dialect), "."), dense()):
        with pytest.raises(KeyError, match=message):
            load_layer(write(tmp_path, tensors), 0)
    assert load_layer(write(tmp_path, tiny(dialect, experts=4)), 0).experts == 4


def test_last_experts_are_missing_by_another_layer(tmp_path):
    tensors = tiny(M, experts=3, layers=(0, 1))
    kept = {key: t for key, t in tensors.items() if "layers.0.mlp.experts.2." not in key}
    message = "no tensor for gate of expert 2, up of expert 2, down of expert 2 in .*: the number of experts in another"
    with pytest.raises(KeyError, match=message):
        load_experts(write(tmp_path, kept), 0)
    assert load_experts(tmp_path, 1).experts == 3
    assert "no tensor for gate of expert 2" in describe(tmp_path)[0].problem


@pytest.mark.parametrize("experts", [None, 0, 1, 2, [4], True])
def test_config_that_asks_for_no_more(experts, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"num_experts": experts}))
    assert load_experts(write(tmp_path, tiny(M)), 0).experts == 2


def test_config_goes_before_other_layers(tmp_path):
    """Layers may have fewer experts than another if the config asks for no more."""
    (tmp_path / "config.json").write_text(json.dumps({"num_experts": 2}))
    folder = write(tmp_path, tiny(M, layers=(0,)) | tiny(M, experts=3, layers=(1,)))
    assert [load_experts(folder, layer).experts for layer in (0, 1)] == [2, 3]


def test_config_is_none(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        load_experts(write(tmp_path, tiny(M)), 0)


def test_long_lists_are_cut(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"n_routed_experts": 256}))
    with pytest.raises(KeyError, match="up of expert 3, down of expert 3 and 756 more in"):
        load_experts(write(tmp_path, tiny(M)), 0)


@pytest.mark.parametrize("folder", FOLDERS.values(), ids=FOLDERS.keys())
def test_fixtures_have_what_their_config_says(folder):
    assert [form.experts for form in describe(folder).values()] == [4, 4]
    assert all(form.input_scales for form in describe(folder).values())
