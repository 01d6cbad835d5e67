"""Bank files: what is read is what was written, kernel and input scales included, or an error says what is wrong.

The fault that this forbids (FlashML-org/FreeToken#723, known issue 2): a file that W4A4 wrote reads back as W4A16's.
"""

import json
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from nvfp4_suite.contract import bank_file
from nvfp4_suite.contract.bank_file import load_banks, save_banks, saved_layers
from nvfp4_suite.contract.binding import Bound, bind
from nvfp4_suite.contract.checkpoint import load_experts, load_layer

from .checkpoints import FOLDERS, dense, tiny, write
from .mixed import Stub, write_mixed
from .test_checkpoint_forms import assert_same

KERNELS = {"prefill": Stub("w4a16"), "w4a4": Stub("w4a4"), "plain": Stub("bf16")}


@pytest.fixture(scope="module")
def layers(tmp_path_factory) -> dict[int, Bound]:
    """The four layers of several formats, bound."""
    folder = write_mixed(tmp_path_factory.mktemp("mixed"))
    return bind({layer: load_layer(folder, layer) for layer in range(4)}, KERNELS)


@pytest.fixture
def tiny_banks(tmp_path):
    return load_experts(write(tmp_path, tiny("modelopt")), 0)


def rewrite(path, change, metadata=lambda about: about) -> None:
    """The file with other tensors or metadata, written by safetensors itself."""
    with safe_open(path, "pt") as tensors:
        about = dict(tensors.metadata())
    save_file(change(load_file(path)), path, metadata=metadata(about))


def test_file_reads_back_as_what_wrote_it(layers, tmp_path):
    save_banks(tmp_path / "model.banks", layers)
    assert saved_layers(tmp_path / "model.banks") == {0: "w4a4", 1: "plain", 2: "w4a4", 3: "prefill"}
    for layer, (kernel, banks) in layers.items():
        read = load_banks(tmp_path / "model.banks", layer)
        assert (read.kernel, type(read.banks), read.banks.formats) == (kernel, type(banks), banks.formats)
        if layer == 1:
            assert torch.equal(read.banks.gate_up, banks.gate_up) and torch.equal(read.banks.down, banks.down)
        else:
            assert_same(read.banks, banks)


@pytest.mark.parametrize("tool", FOLDERS)
def test_input_scales_are_kept(tool, tmp_path):
    banks = load_experts(FOLDERS[tool], 1)
    save_banks(tmp_path / "banks", {7: Bound("w4a4", banks)})
    read = load_banks(tmp_path / "banks", 7)
    assert read.kernel == "w4a4"
    assert torch.equal(read.banks.gate_up_input_scale, banks.gate_up_input_scale)
    assert torch.equal(read.banks.down_input_scale, banks.down_input_scale)


def test_kernel_is_the_one_that_was_bound_even_if_another_takes_the_banks(tiny_banks, tmp_path):
    save_banks(tmp_path / "banks", {0: Bound("prefill", tiny_banks)})
    read = load_banks(tmp_path / "banks", 0)
    assert read.kernel == "prefill" and read.banks.gate_up_input_scale is not None


def test_banks_are_on_the_device(tiny_banks, device, tmp_path):
    save_banks(tmp_path / "banks", {0: Bound("w4a4", tiny_banks.to(device))})
    read = load_banks(tmp_path / "banks", 0, device)
    assert read.banks.device.type == device
    assert_same(read.banks.to("cpu"), tiny_banks)


def test_every_field_may_be_misaligned_in_the_file(tmp_path):
    """safetensors aligns to the size of an element; banks want 16 bytes. One expert, odd names, several orders."""
    for experts in (1, 3):
        banks = load_experts(write(tmp_path, tiny("modelopt", experts=experts)), 0)
        save_banks(tmp_path / "banks", {10: Bound("w4a4", banks), 1: Bound("w4a4", banks)})
        for layer in (1, 10):
            assert_same(load_banks(tmp_path / "banks", layer).banks, banks)


def test_failed_write_leaves_the_old_file(tiny_banks, tmp_path, monkeypatch):
    path = tmp_path / "banks"
    save_banks(path, {0: Bound("w4a4", tiny_banks)})
    before = path.read_bytes()

    def fail(_):
        raise OSError("no space left")

    monkeypatch.setattr(bank_file.os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        save_banks(path, {1: Bound("w4a4", tiny_banks)})
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["banks", "model.safetensors"]


def test_file_appears_whole(tiny_banks, tmp_path, monkeypatch):
    """Until everything is on disk the file has another name."""
    path, seen, fsync = tmp_path / "banks", [], bank_file.os.fsync
    monkeypatch.setattr(bank_file.os, "fsync", lambda file: (seen.append(path.exists()), fsync(file)))
    save_banks(path, {0: Bound("w4a4", tiny_banks)})
    assert seen == [False] and path.exists()


def changed(name: str, expert: int, value: float):
    def change(banks):
        tensor = getattr(banks, name).clone()
        tensor[expert].fill_(value)
        return replace(banks, **{name: tensor})

    return change


NAN, INF = float("nan"), float("inf")
NOT_FINITE = [
    ("gate_up_scale", NAN, "0.gate_up_scale is nan at expert 1, row 0, block 0, but should be finite"),
    ("down_scale", NAN, "0.down_scale is nan at expert 1, row 0, block 0, but should be finite"),
    ("gate_up_global", INF, "0.gate_up_global is inf at expert 1, row 0, but should be finite"),
    ("down_global", NAN, "0.down_global is nan at expert 1, row 0, but should be finite"),
    ("gate_up_input_scale", INF, "0.gate_up_input_scale is inf at expert 1, but should be positive and finite"),
    ("down_input_scale", 0.0, "0.down_input_scale is 0.0 at expert 1, but should be positive and finite"),
    ("down_input_scale", -1.0, "0.down_input_scale is -1.0 at expert 1, but should be positive and finite"),
]


@pytest.mark.parametrize(("name", "value", "message"), NOT_FINITE, ids=[f"{name}-{v}" for name, v, _ in NOT_FINITE])
def test_scale_that_is_not_finite(name, value, message, tiny_banks, tmp_path):
    """Neither written nor read; the error names file, tensor and expert."""
    path, bad = tmp_path / "banks", changed(name, 1, value)(tiny_banks)
    with pytest.raises(ValueError, match=rf"{message} \({path}\)"):
        save_banks(path, {0: Bound("w4a4", bad)})
    assert not path.exists()
    save_banks(path, {0: Bound("w4a4", tiny_banks)})
    rewrite(path, lambda tensors: tensors | {f"0.{name}": getattr(bad, name)})
    with pytest.raises(ValueError, match=rf"{message} \({path}\)"):
        load_banks(path, 0)


def lost(name: str):
    return lambda tensors: {key: t for key, t in tensors.items() if key != name}


def about(**changes):
    return lambda metadata: {**metadata, **changes}


def layers_of(**changes) -> str:
    return json.dumps({"0": {"kind": "nvfp4", "kernel": "w4a4", "tensors": []} | changes})


def same(tensors: dict) -> dict:
    return tensors


# what is wrong with the file, tensors, metadata, error, what is said beside the file
BROKEN = [
    ("tensor", lost("0.down_scale"), same, KeyError, "0.down_scale is missing from"),
    ("input", lost("0.down_input_scale"), same, KeyError, "0.down_input_scale is missing from"),
    ("no-format", same, lambda _: {}, ValueError, "is no bank file: its format is None, but should be 'nvfp4-suite"),
    ("pt", same, lambda _: {"format": "pt"}, ValueError, "is no bank file: its format is 'pt', but should be"),
    ("version", same, about(version="2"), ValueError, "is a bank file of version 2, but should be of 1"),
    ("json", same, about(layers="{"), ValueError, "says of its layers what is not JSON"),
    ("list", same, about(layers="[]"), ValueError, "says of its layers .*but should say what each of them is"),
    ("kind", same, about(layers=layers_of(kind="int4")), ValueError, "says of layer 0 .*int4.*but should"),
    ("fields", same, about(layers=layers_of(tensors=["other"])), ValueError, "says of layer 0 .*other.*but should"),
    ("kernel", same, about(layers=layers_of(kernel=None)), ValueError, "says of layer 0 .*None.*but should"),
    (
        "shape",
        lambda t: t | {"0.down_global": torch.ones(2, 16)},
        same,
        ValueError,
        "layer 0 of .*: down_global has s",
    ),
    ("dtype", lambda t: t | {"0.down_packed": torch.ones(2)}, same, TypeError, "layer 0 of .*: down_packed is torch.f"),
]


@pytest.mark.parametrize(
    ("tensors", "metadata", "error", "message"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN]
)
def test_broken_file(tensors, metadata, error, message, tiny_banks, tmp_path):
    path = tmp_path / "banks"
    save_banks(path, {0: Bound("w4a4", tiny_banks)})
    rewrite(path, tensors, metadata)
    with pytest.raises(error, match=message) as caught:
        load_banks(path, 0)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("length", [0, 7, 100, -1])
def test_truncated_file(length, tiny_banks, tmp_path):
    path = tmp_path / "banks"
    save_banks(path, {0: Bound("w4a4", tiny_banks)})
    path.write_bytes(path.read_bytes()[:length])
    for read in (saved_layers, lambda path: load_banks(path, 0)):
        with pytest.raises(ValueError, match=f"{path} is not a complete safetensors file"):
            read(path)


def test_layer_that_is_not_there(tiny_banks, tmp_path):
    save_banks(tmp_path / "banks", {1: Bound("w4a4", tiny_banks), 3: Bound("w4a4", tiny_banks)})
    with pytest.raises(KeyError, match=r"layer 0 is not in .*banks; layers that are: 1, 3"):
        load_banks(tmp_path / "banks", 0)


def test_checkpoint_is_no_bank_file(tmp_path):
    folder = write(tmp_path, dense())
    with pytest.raises(ValueError, match="is no bank file"):
        load_banks(folder / "model.safetensors", 0)
    with pytest.raises(FileNotFoundError, match="absent"):
        load_banks(tmp_path / "absent", 0)


@pytest.mark.parametrize("kernel", [None, "", 3])
def test_kernel_without_a_name(kernel, tiny_banks, tmp_path):
    with pytest.raises(ValueError, match=f"layer 5 is bound to {kernel!r}, but should name a kernel"):
        save_banks(tmp_path / "banks", {5: Bound(kernel, tiny_banks)})
    assert not (tmp_path / "banks").exists()


def test_nothing_to_write(tmp_path):
    with pytest.raises(ValueError, match=r"there are no layers to write to .*banks"):
        save_banks(tmp_path / "banks", {})
