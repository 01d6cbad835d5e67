"""Kernels that say they compute the same sums: to the bit inside a family, up to the order of additions across them.

On random inputs, where almost any difference in decode, masks or order changes bits. All kernels of a comparison run
the same tile, so that they have the same matrix instruction and the same steps.
"""

import dataclasses
from functools import lru_cache

import pytest
import torch

from nvfp4_suite.contract import gpus
from nvfp4_suite.contract.banks import ExpertBanks
from nvfp4_suite.contract.case import Case, Inputs
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import LayerShape as Shape
from nvfp4_suite.kernels import experts
from nvfp4_suite.kernels.plan import LayerPlan, plan_layer
from nvfp4_suite.kernels.tiles import Tile, most_block_m
from nvfp4_suite.kernels.variants import VARIANTS
from nvfp4_suite.reference import judge

from ..engine import INTERPRETED, on_gpu
from ..moe.gate_up import gate_up
from ..moe.subject import inputs_of, layer_arguments, plan_options
from ..poison import poisoned_allocations

CARD = Gpu("NVIDIA H200", (9, 0)) if INTERPRETED else gpus.current(0)  # interpreted: of a card with native e4m3
FAMILIES = {
    form: [name for name, variant in VARIANTS.items() if variant.two_dots == two_dots]
    for form, two_dots in (("one dot", False), ("two dots", True))
}
CASES = [
    Case(Shape(3, 2, 272, 80), 4, inputs="random"),  # K that a step does not divide, as in FreeToken#578
    Case(Shape(3, 2, 80, 272), 4, inputs="random", dtype="fp16"),
    Case(Shape(2, 1, 128, 64), 5, inputs="random", dtype="fp16"),  # K of whole steps and whole scale words
    Case(Shape(2, 2, 64, 192), 3, inputs="random", weight_on_input=True),
]
LARGE = [
    Case(Shape(8, 2, 2048, 512), 257, inputs="random"),
    Case(Shape(8, 4, 2816, 704), 64, "dropped", inputs="random", dtype="fp16", activation="gelu_tanh"),
    Case(Shape(8, 2, 2560, 640), 1024, "hot", inputs="random"),
    Case(Shape(4, 2, 1040, 528), 300, inputs="random", dtype="fp16"),
    Case(Shape(8, 2, 272, 80), 512, inputs="random"),
]
TILE = Tile(32)
ODD_TILES = [Tile(16), Tile(64), Tile(128), Tile(32, block_kb=64), Tile(64, num_stages=2)]
RUNS = [(case, TILE) for case in [*CASES, *on_gpu(LARGE)]]
RUNS += on_gpu([(case, Tile(64, num_warps=8)) for case in [*CASES, *LARGE]])
RUNS += on_gpu([(LARGE[0], tile) for tile in ODD_TILES])
NORM_RATIO = 3e-4  # what seed measurements of FreeToken gave on an RTX 4090 where the order of the additions changed
EXACT_FROM = 2.0**-102  # the smallest activations of bf16 under which the pair form promises the table's bits


def _can_be_planned(family: str, tile: Tile) -> bool:
    most = most_block_m(CARD, VARIANTS[FAMILIES[family][0]])
    return most is None or tile.block_m <= most


def _plan(case: Case, kernel: str, tile: Tile) -> LayerPlan:
    return plan_layer(CARD, case.shape, case.tokens, kernel=kernel, override=tile, **plan_options(case))


def _run(plan: LayerPlan, inputs: Inputs, device: str) -> torch.Tensor:
    with poisoned_allocations():
        return experts.run(plan, *layer_arguments(inputs.to(device))).cpu()


@lru_cache(maxsize=16)
def _output(case: Case, kernel: str, tile: Tile, device: str) -> torch.Tensor:
    return _run(_plan(case, kernel, tile), inputs_of(case), device)


def _warps(tile: Tile) -> str:
    return f"{tile.num_warps}w{tile.num_stages}s"


def _parameters() -> list:
    """(case, tile, family), without the tiles that a family refuses on this card."""
    return [
        pytest.param(case, tile, family, id=f"{case.id}-{family}-m{tile.block_m}kb{tile.block_kb}-{_warps(tile)}")
        for case, tile in RUNS
        for family in FAMILIES
        if _can_be_planned(family, tile)
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_two_of_a_family_are_one_kernel(family):
    """Else they would agree whatever they compute. A card without e4m3 has one kernel less."""
    card = Gpu("NVIDIA H200", (9, 0))
    case = CASES[2]
    plans = [plan_layer(card, case.shape, case.tokens, kernel=name, override=TILE) for name in FAMILIES[family]]
    assert len({plan.launches for plan in plans}) == len(plans) >= 2


@pytest.mark.parametrize(("case", "tile", "family"), _parameters())
def test_a_family_gives_the_same_bits(case: Case, tile: Tile, family: str, device):
    first, *others = FAMILIES[family]
    for kernel in others:
        actual, expected = (_output(case, name, tile, device) for name in (kernel, first))
        judge.bitwise(actual, expected, case=case.id, kernel=kernel, like=first, tile=tile)


@pytest.mark.parametrize("case", [*CASES, *on_gpu(LARGE)])
def test_across_families_only_the_order_of_additions_differs(case: Case, device, record_property):
    one, two = (_output(case, names[0], TILE, device).double() for names in FAMILIES.values())
    ratio = ((two - one).norm() / one.norm()).item()
    record_property("norm_ratio", ratio)
    assert ratio <= NORM_RATIO


@pytest.mark.parametrize("kernel", FAMILIES["two dots"])
def test_powers_of_two_cost_no_bit_down_to_tiny_activations(kernel: str, device):
    """The same layer with activations so much smaller and globals so much larger: nothing may underflow on the way."""
    case = dataclasses.replace(CASES[0], tokens=2)
    inputs = inputs_of(case)
    x = inputs.hidden_states
    power = EXACT_FROM / 2.0 ** int(x[x != 0].abs().double().log2().floor().min())
    tiny, huge = x * power, inputs.banks.gate_up_global / power
    assert x.dtype == torch.bfloat16 and torch.equal(tiny / power, x) and huge.isfinite().all()
    banks = dataclasses.replace(inputs.banks, gate_up_global=huge)
    shifted = dataclasses.replace(inputs, hidden_states=tiny, banks=banks)
    actual = _run(_plan(case, kernel, TILE), shifted, device)
    judge.bitwise(actual, _output(case, kernel, TILE, device), kernel=kernel, power=power)


@pytest.mark.parametrize("kernel", FAMILIES["two dots"])
def test_the_even_k_of_a_step_come_first(kernel: str, device):
    """A sum of 2^24 does not see the 1 at an even k, before the odd k of the same step cancels it; then 0 is left.

    Between random inputs the order of a step's dots hides behind the rounding to 16 bits.
    """
    x = torch.zeros(1, 128, dtype=torch.bfloat16, device=device)
    x[0, 0], x[0, 64], x[0, 65] = 2.0**24, 1.0, -(2.0**24)
    ones = torch.full((32, 64), 0x22, dtype=torch.uint8, device=device)
    scale, global_scale = torch.ones(32, 8, device=device).to(torch.float8_e4m3fn), torch.ones(32, device=device)
    assert (gate_up(kernel, x, ones, scale, global_scale) == 0).all()
    x[0, 64], x[0, 65] = -(2.0**24), 1.0  # the other way round it is seen
    assert (gate_up(kernel, x, ones, scale, global_scale) == 1).all()


@pytest.mark.fault("triton-lang/triton#10821")
@pytest.mark.parametrize("kernel", VARIANTS)
def test_sums_over_even_and_over_odd_k_meet(kernel: str, device):
    """triton-lang/triton#10821: 64 rows of one expert, x of 1 at even and of 2 at odd k, all weights 1, K 64.

    Every sum of gate and of up is 32 * 1 + 32 * 2 = 96, silu(96) * 96 is 9216, and a row of down is 32 of that.
    """
    packed = torch.full((1, 64, 32), 0x22, dtype=torch.uint8)
    scale = torch.ones(1, 64, 4).to(torch.float8_e4m3fn)
    banks = ExpertBanks(
        packed, scale, torch.ones(1, 64), packed[..., :16].contiguous(), scale[..., :2].contiguous(), torch.ones(1, 64)
    )
    x = torch.tensor([1.0, 2.0], dtype=torch.bfloat16).repeat(64, 32)
    inputs = Inputs(x, banks, torch.ones(64, 1), torch.zeros(64, 1, dtype=torch.int32))
    plan = plan_layer(CARD, Shape(1, 1, 64, 32), 64, kernel=kernel)
    assert (_run(plan, inputs, device) == 32 * 9216).all()
