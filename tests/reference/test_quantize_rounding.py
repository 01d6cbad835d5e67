"""Rounding, exhaustively: every midpoint of both formats through every recipe, and how often the recipes part there."""

import itertools

import pytest
import torch

from nvfp4_suite.reference import formats
from nvfp4_suite.reference.quantize import RECIPES, exact_codes, global_scale_of, quantize

from .blocks import neutral, ordinary
from .tables import E2M1_MIDPOINTS, E2M1_TIES, E4M3

NAMES = tuple(RECIPES)
DIVIDING = ("modelopt", "compressed_tensors")  # the others multiply by a reciprocal, which is rounded already
SCALES = torch.arange(1, 0x7F, dtype=torch.uint8)  # every positive finite e4m3


def with_neighbours(x: torch.Tensor, steps: int = 1) -> torch.Tensor:
    """[..., 3]: x moved by that many fp32 steps down, x, and x moved up; x is positive."""
    moved = x.view(torch.int32)[..., None] + torch.tensor([-steps, 0, steps])
    return moved.to(torch.int32).view(torch.float32)


def midpoints(amax: float) -> torch.Tensor:
    """[126, 7, 3]: each midpoint under each scale, with its neighbours, in a tensor of that amax."""
    unit = formats.decode_e4m3(SCALES) / (torch.tensor(2688.0) / torch.tensor(amax))
    return with_neighbours(unit[:, None] * torch.tensor(E2M1_MIDPOINTS))


def codes_at_midpoints(recipe: str, amax: float = 2688.0) -> torch.Tensor:
    """The codes [126, 7, 3] of `midpoints`; at 2688 the global scale changes nothing."""
    global_scale = global_scale_of(torch.tensor(amax), recipe)
    return RECIPES[recipe].codes(midpoints(amax).flatten(1), SCALES, global_scale).unflatten(1, (-1, 3))


def exact_codes_at_midpoints() -> torch.Tensor:
    return exact_codes(midpoints(2688.0), torch.ones(()), formats.decode_e4m3(SCALES)[:, None, None])


def differ(one: torch.Tensor, other: torch.Tensor) -> list[int]:
    """How many codes differ below, at and above a midpoint; where they do, by one step of rounding."""
    assert ((one.int() - other.int()).abs() <= 1).all()
    return (one != other).sum((0, 1)).tolist()


# Block scales

_LEAST = {"modelopt": 0x01, "torchao": 0x08}  # other recipes reach 0, which compressed_tensors replaces


@pytest.mark.fault("triton-lang/triton#11753")
@pytest.mark.parametrize("recipe", NAMES)
def test_every_midpoint_of_e4m3_rounds_to_even_and_its_neighbours_do_not(recipe):
    """A step through fp16 would make ties of the neighbours (seen in triton-lang/triton#11753).

    amax moves by two steps, as one step of it may be less than half a step of amax * (1 / 6).
    """
    amax = torch.tensor([3 * (low + high) for low, high in itertools.pairwise(E4M3)])
    wanted = torch.tensor([[byte, byte + byte % 2, byte + 1] for byte in range(126)]).clamp(min=_LEAST.get(recipe, 0))
    if recipe == "compressed_tensors":
        wanted[wanted == 0] = 0x20
    scale = RECIPES[recipe].block_scale(with_neighbours(amax, steps=2), neutral(recipe))
    assert scale.tolist() == wanted.tolist()


@pytest.mark.parametrize("recipe", NAMES)
def test_every_scale_is_met_exactly(recipe):
    """A block whose largest magnitude is 6 scales has that scale; torchao has no subnormal ones."""
    scale = RECIPES[recipe].block_scale(6 * torch.tensor(E4M3[1:]), neutral(recipe))
    assert scale.tolist() == SCALES.clamp(min=_LEAST.get(recipe, 1)).tolist()
    assert (scale != SCALES).sum() == (7 if recipe == "torchao" else 0)


# Codes


@pytest.mark.parametrize("recipe", DIVIDING)
def test_every_midpoint_of_e2m1_rounds_to_even_under_every_scale(recipe):
    """Away from zero would be wrong at four midpoints of seven (seen in ROCm/aiter#3992)."""
    table = torch.tensor([[code, tie, code + 1] for code, tie in enumerate(E2M1_TIES)])
    assert torch.equal(codes_at_midpoints(recipe).int(), table.int().expand(126, 7, 3))


@pytest.mark.parametrize("recipe", NAMES)
def test_codes_are_exact_where_the_factor_is(recipe):
    """Scales that are powers of two have exact reciprocals; the comparison is with rational arithmetic."""
    power = (SCALES & 7 == 0) | torch.isin(SCALES, torch.tensor([1, 2, 4]))
    assert power.sum() == 18
    assert torch.equal(codes_at_midpoints(recipe)[power], exact_codes_at_midpoints()[power])


@pytest.mark.parametrize("recipe", [name for name in NAMES if name not in DIVIDING])
def test_a_reciprocal_turns_116_of_2646_codes(recipe):
    """Up into a tie from one step below a midpoint, or down out of the tie."""
    assert differ(codes_at_midpoints(recipe), exact_codes_at_midpoints()) == [74, 42, 0]


def test_dividing_and_multiplying_by_the_reciprocal_disagree_181_times_at_amax_6():
    """And as often for the negatives: x / (s p) against x * (1 / (s p)), with p = 6 / 2688."""
    divided, multiplied = (codes_at_midpoints(recipe, amax=6.0) for recipe in ("modelopt", "transformer_engine"))
    assert sum(differ(divided, multiplied)) == 181


# How far the recipes part: (scales, codes) that differ from Transformer Engine's


def _ordinary() -> torch.Tensor:
    return ordinary(256, 256)


def _binades() -> torch.Tensor:
    """One block a row, of magnitudes over 24 binades: 2^-18 of the largest and less has no scale."""
    return ordinary(240, 16) * 2.0 ** -(torch.arange(240) % 24)[:, None]


def _zero_blocks() -> torch.Tensor:
    """Every fourth block is zero."""
    x = ordinary(256, 256).unflatten(1, (-1, 16))
    x[:, ::4] = 0
    return x.flatten(1)


PARTING = {
    _ordinary: {"modelopt": (0, 0), "compressed_tensors": (0, 0), "torchao": (0, 0), "vllm": (0, 0)},
    _zero_blocks: {"modelopt": (1024, 0), "compressed_tensors": (1024, 0), "torchao": (1024, 0), "vllm": (0, 0)},
    # Transformer Engine has 50 scales of 0, which make +-6 of each element; torchao lacks its 40 subnormal ones too.
    _binades: {"modelopt": (50, 800), "compressed_tensors": (50, 800), "torchao": (90, 1336), "vllm": (0, 800)},
}


@pytest.mark.parametrize("recipe", [name for name in NAMES if name != "transformer_engine"])
@pytest.mark.parametrize("data", PARTING, ids=lambda data: data.__name__.strip("_"))
def test_ordinary_data_cannot_tell_the_recipes_apart_but_zeros_and_small_blocks_can(data, recipe):
    x = data()
    results = [quantize(x, global_scale_of(x.abs().amax(), name), name) for name in (recipe, "transformer_engine")]
    (packed, scale), (other_packed, other_scale) = results
    codes = formats.unpack(packed) != formats.unpack(other_packed)
    assert ((scale != other_scale).sum().item(), codes.sum().item()) == PARTING[data][recipe]
