"""Properties of quantizers and layouts that hold for all inputs; where a recipe breaks one, the test says so."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from nvfp4_suite.reference import formats, layout
from nvfp4_suite.reference.quantize import RECIPES, global_scale_of, quantize

LOSES_SIGN_OF_ZERO = ("modelopt", "compressed_tensors", "transformer_engine")
REPLACES_ZERO = ("modelopt", "compressed_tensors")  # by 1 and by 0.125
LEAST_SCALE = {"torchao": 0x08}  # others go down to 0x01

recipes = st.sampled_from(list(RECIPES))
integers = st.integers(-(2**24), 2**24)  # what fp32 holds
blocks = st.lists(integers, min_size=16, max_size=16)
scale_bytes = st.integers(0x01, 0x7E)
amaxes = st.integers(1, 2**24).map(lambda m: torch.tensor(m / 2**20))  # of a tensor: 2^-20 to 16, all 24 bits


def fp32(integers_: list[int], exponent: int = -20) -> torch.Tensor:
    return torch.tensor(integers_).float() * 2.0**exponent


def multiplier(amax: torch.Tensor, recipe: str) -> torch.Tensor:
    """What the recipe's global scale means when codes are decoded."""
    stored = global_scale_of(amax, recipe)
    return {"modelopt": stored, "torchao": stored, "transformer_engine": stored / 2688}.get(recipe, 1 / stored)


@given(recipes, st.lists(st.integers(0, 15), min_size=15, max_size=15), st.sampled_from([7, 15]), scale_bytes, amaxes)
def test_quantizing_what_was_decoded_gives_it_back(recipe, codes, largest, scale, amax):
    """If the block makes use of its scale. The code of -0 comes back as 0 where the recipe loses its sign."""
    scale = max(scale, LEAST_SCALE.get(recipe, 0))
    codes = torch.tensor([*codes, largest], dtype=torch.uint8)
    scales = torch.tensor([scale], dtype=torch.uint8)
    x = formats.dequantize(formats.pack(codes), scales, multiplier(amax, recipe)).float()
    packed, found = quantize(x, global_scale_of(amax, recipe), recipe)
    assert found.tolist() == [scale]
    wanted = torch.where(codes == 8, 0, codes) if recipe in LOSES_SIGN_OF_ZERO else codes
    assert formats.unpack(packed).tolist() == wanted.tolist()


@given(recipes, blocks, scale_bytes, amaxes)
def test_codes_grow_with_x(recipe, block, scale, amax):
    x = fp32(sorted(block))
    codes = RECIPES[recipe].codes(x, torch.tensor(scale, dtype=torch.uint8), global_scale_of(amax, recipe))
    assert (formats.decode_e2m1(codes).diff() >= 0).all()


@given(recipes, st.lists(st.integers(0, 2**24), min_size=2), amaxes)
def test_block_scales_grow_with_amax(recipe, block_amaxes, amax):
    """Where two recipes do not replace a scale of 0 by a larger one."""
    block_amax = fp32(sorted(block_amaxes))
    if recipe in REPLACES_ZERO:
        block_amax = block_amax[block_amax / (6 * multiplier(amax, recipe)) >= 2.0**-9]
    scale = RECIPES[recipe].block_scale(block_amax, global_scale_of(amax, recipe))
    assert (scale.int().diff() >= 0).all()


@given(recipes, blocks, amaxes)
def test_negating_x_flips_the_sign_bits(recipe, block, amax):
    """But for zeros, where the recipe loses their sign: code 0 either way."""
    x = fp32(block)
    (packed, scale), (negated, same_scale) = (quantize(y, global_scale_of(amax, recipe), recipe) for y in (x, -x))
    assert torch.equal(scale, same_scale)
    flipped = formats.unpack(packed) ^ 8
    if recipe in LOSES_SIGN_OF_ZERO:
        flipped[x == 0] = 0
    assert formats.unpack(negated).tolist() == flipped.tolist()


@given(recipes, st.lists(blocks, min_size=1, max_size=4), amaxes)
def test_each_block_is_quantized_alone(recipe, rows, amax):
    """Side by side in one row, or row after row."""
    global_scale, x = global_scale_of(amax, recipe), fp32(rows)
    packed, scale = quantize(x, global_scale, recipe)
    in_one_row = quantize(x.flatten(), global_scale, recipe)
    assert torch.equal(in_one_row[0], packed.flatten())
    assert torch.equal(in_one_row[1], scale.flatten())


@given(recipes, blocks, amaxes, st.integers(-30, 30))
def test_powers_of_two_move_from_x_to_the_global_scale(recipe, block, amax, exponent):
    """As no step underflows here."""
    shift = 2.0**exponent
    results = [quantize(fp32(block) * by, global_scale_of(amax * by, recipe), recipe) for by in (1.0, shift)]
    assert all(map(torch.equal, *results))


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=40))
def test_unpacking_undoes_packing(pairs):
    codes = torch.tensor(pairs, dtype=torch.uint8).flatten()
    packed = formats.pack(codes)
    assert packed.tolist() == [low + 16 * high for low, high in pairs]
    assert torch.equal(formats.unpack(packed), codes)


@given(st.sampled_from(list(layout.TILE_ROWS)), st.integers(0, 300), st.integers(0, 20))
def test_every_scale_has_a_byte_of_its_own(name, rows, columns):
    places = layout.places(rows, columns, name).flatten()
    assert places.unique().numel() == rows * columns
    assert ((places >= 0) & (places < layout.tiled_size(rows, columns, name))).all()
    scale = torch.arange(rows * columns).remainder(256).to(torch.uint8).reshape(rows, columns)
    assert torch.equal(layout.from_tiled(layout.to_tiled(scale, name), rows, columns, name), scale)
