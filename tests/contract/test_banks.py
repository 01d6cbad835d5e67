"""ExpertBanks: what it accepts, and every tensor that it refuses."""

from dataclasses import fields

import pytest
import torch

from nvfp4_suite.contract.banks import ExpertBanks
from nvfp4_suite.contract.shapes import LayerShape

EXPERTS, HIDDEN, INTERMEDIATE = 2, 48, 16
SHAPES = {
    "gate_up_packed": (2, 32, 24),
    "gate_up_scale": (2, 32, 3),
    "gate_up_global": (2, 32),
    "down_packed": (2, 48, 8),
    "down_scale": (2, 48, 1),
    "down_global": (2, 48),
    "gate_up_input_scale": (2,),
    "down_input_scale": (2,),
}
DTYPES = {"packed": torch.uint8, "scale": torch.float8_e4m3fn, "global": torch.float32, "input_scale": torch.float32}
OPTIONAL = ("gate_up_input_scale", "down_input_scale")


def dtype_of(name: str) -> torch.dtype:
    return DTYPES[name.removeprefix("gate_up_").removeprefix("down_")]


def tensors(**changes) -> dict:
    """Good fields, with `changes`."""
    good = {name: torch.zeros(shape, dtype=dtype_of(name)) for name, shape in SHAPES.items()}
    return good | changes


def misaligned(name: str) -> torch.Tensor:
    """Contiguous, but one element past the allocation's start."""
    shape = torch.Size(SHAPES[name])
    return torch.zeros(shape.numel() + 1, dtype=dtype_of(name))[1:].view(shape)


def strided(name: str) -> torch.Tensor:
    """Every second element of a buffer."""
    *rest, last = SHAPES[name]
    return torch.zeros(*rest, 2 * last, dtype=dtype_of(name))[..., ::2]


def test_names_are_the_fields():
    assert list(SHAPES) == [field.name for field in fields(ExpertBanks)]


def test_good_banks():
    banks = ExpertBanks(**tensors())
    assert (banks.experts, banks.hidden, banks.intermediate) == (EXPERTS, HIDDEN, INTERMEDIATE)
    assert banks.layer_shape(top_k=2) == LayerShape(EXPERTS, 2, HIDDEN, INTERMEDIATE)
    assert banks.device == torch.device("cpu")


def test_input_scales_are_optional():
    banks = ExpertBanks(**tensors(gate_up_input_scale=None, down_input_scale=None))
    assert banks.gate_up_input_scale is None and banks.down_input_scale is None
    assert banks.to("cpu").down_input_scale is None


@pytest.mark.parametrize("name", OPTIONAL)
def test_one_input_scale_without_the_other(name):
    with pytest.raises(ValueError, match=f"^{name} is None, but should be given: the other input scale is$"):
        ExpertBanks(**tensors(**{name: None}))


def test_to_moves_every_tensor():
    moved = ExpertBanks(**tensors()).to("meta")
    assert {getattr(moved, name).device.type for name in SHAPES} == {"meta"}


@pytest.mark.parametrize("name", SHAPES)
def test_dtype(name):
    wrong = torch.zeros(SHAPES[name], dtype=torch.float16)
    with pytest.raises(TypeError, match=f"^{name} is torch.float16, but should be {dtype_of(name)}$"):
        ExpertBanks(**tensors(**{name: wrong}))


@pytest.mark.parametrize("name", SHAPES)
def test_not_a_tensor(name):
    with pytest.raises(TypeError, match=f"^{name} is a list, but should be a torch.Tensor$"):
        ExpertBanks(**tensors(**{name: [0]}))


@pytest.mark.parametrize("name", [name for name in SHAPES if name not in OPTIONAL])
def test_none_where_a_tensor_must_be(name):
    with pytest.raises(TypeError, match=f"^{name} is a NoneType, but should be a torch.Tensor$"):
        ExpertBanks(**tensors(**{name: None}))


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "gate_up_packed"])
def test_shape(name):
    """All other shapes follow from that of gate_up_packed: one expert, row or column too many, or one dimension."""
    good = list(SHAPES[name])
    grown = [[*good[:axis], good[axis] + 1, *good[axis + 1 :]] for axis in range(len(good))]
    for shape in [*grown, [*good, 1]]:
        with pytest.raises(ValueError, match=rf"^{name} has shape \[.*\], but should be \["):
            ExpertBanks(**tensors(**{name: torch.zeros(shape, dtype=dtype_of(name))}))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((32, 24), r"gate_up_packed has shape \[32, 24\], but should be \[experts, rows, K/2\]"),
        ((0, 32, 24), "gate_up_packed has no expert"),
        ((2, 32, 20), r"hidden \(gate_up_packed's K\) is 40, but should be a positive multiple of 16"),
        ((2, 32, 0), r"hidden \(gate_up_packed's K\) is 0, but should be a positive multiple of 16"),
        (
            (2, 33, 24),
            r"intermediate \(half of gate_up_packed's rows\) is 16.5, but should be a positive multiple of 16",
        ),
        (
            (2, 16, 24),
            r"intermediate \(half of gate_up_packed's rows\) is 8.0, but should be a positive multiple of 16",
        ),
        ((2, 0, 24), r"intermediate \(half of gate_up_packed's rows\) is 0.0, but should be a positive multiple of 16"),
        ((2, 64, 24), r"gate_up_scale has shape \[2, 32, 3\], but should be \[2, 64, 3\]"),
        ((3, 32, 24), r"gate_up_scale has shape \[2, 32, 3\], but should be \[3, 32, 3\]"),
    ],
    ids=str,
)
def test_shape_of_gate_up_packed(shape, message):
    with pytest.raises(ValueError, match=message):
        ExpertBanks(**tensors(gate_up_packed=torch.zeros(shape, dtype=torch.uint8)))


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "gate_up_packed"])
def test_device(name):
    elsewhere = torch.zeros(SHAPES[name], dtype=dtype_of(name), device="meta")
    with pytest.raises(ValueError, match=f"^{name} is on meta, but should be on cpu like gate_up_packed$"):
        ExpertBanks(**tensors(**{name: elsewhere}))


@pytest.mark.parametrize("name", SHAPES)
def test_contiguous(name):
    with pytest.raises(ValueError, match=rf"^{name} has strides \[.*\], but should be contiguous$"):
        ExpertBanks(**tensors(**{name: strided(name)}))


@pytest.mark.parametrize("name", SHAPES)
def test_aligned(name):
    past = dtype_of(name).itemsize
    with pytest.raises(
        ValueError, match=f"^{name} starts at {past} bytes past a multiple of 16, but should be 16-byte"
    ):
        ExpertBanks(**tensors(**{name: misaligned(name)}))
