"""What holds of every plan, whatever the card, the shape and the number of tokens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvfp4_suite.contract.gpu_names import SAFE, has_known_name, speed_class
from nvfp4_suite.contract.gpus import ARCHITECTURES, CATALOG, PORTABLE, Gpu, architecture, is_known
from nvfp4_suite.contract.kernel import ACTIVATIONS, DTYPES
from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape
from nvfp4_suite.kernels import hopper
from nvfp4_suite.kernels.launch import Launch
from nvfp4_suite.kernels.plan import LayerPlan, plan_layer
from nvfp4_suite.kernels.tiles import Tile, least_tile, shared_memory
from nvfp4_suite.kernels.variants import FORMS, VARIANTS, Variant

NAMES = ["", "MIG 1g.10gb", "NVIDIA X1", "GRID V7-8Q", *(gpu.name for gpu in CATALOG)]
CAPABILITIES = [*ARCHITECTURES, (7, 5), (13, 0)]
GPUS = st.builds(Gpu, st.sampled_from(NAMES), st.sampled_from(CAPABILITIES)) | st.just(PORTABLE)
UNNAMED = [Gpu(f"a new card of {capability}", capability) for capability in CAPABILITIES]
SIZES = st.integers(1, 512).map(lambda units: 16 * units)
SHAPES = st.sampled_from([*CHECKPOINTS.values()]) | st.builds(
    LayerShape, st.integers(1, 512), st.integers(1, 16), SIZES, SIZES
)
TOKENS = st.integers(1, 40_000) | st.integers(1, 300)
KERNELS = ("auto", "prefill", "decode", *VARIANTS)
OPTIONS = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(DTYPES),
        "activation": st.sampled_from(ACTIVATIONS),
        "weight_on_input": st.booleans(),
    }
)
every_kernel = pytest.mark.parametrize("kernel", KERNELS)
every_capability = pytest.mark.parametrize("capability", [*CAPABILITIES, None], ids=str)


@every_capability
@every_kernel
@settings(max_examples=8)
@given(name=st.sampled_from(NAMES), shape=SHAPES, tokens=TOKENS, options=OPTIONS)
def test_no_plan_takes_what_the_capability_lacks(kernel, capability, name, shape, tokens, options):
    """More shared memory than there is, a type, a matrix instruction, or one that computes something else."""
    gpu = Gpu(name, capability)
    facts = architecture(gpu)
    plan = plan_layer(gpu, shape, tokens, kernel=kernel, **options)
    for launch in _gemms(plan):
        if launch.kernel in (hopper.GATE_UP, hopper.DOWN):
            assert capability == hopper.CAPABILITY and hopper.shared_memory(launch) <= facts.shared_memory
            continue
        tile, variant = _tile(launch), _variant(launch)
        assert shared_memory(tile, facts, variant) <= facts.shared_memory
        least = least_tile(variant)
        assert all(getattr(tile, size) >= getattr(least, size) for size in ("block_m", "block_n", "block_kb"))
    for launch in plan.launches:
        assert facts.native_e4m3 or "*fp8e4nv" not in dict(launch.arguments).values()
        assert launch.instruction in (None, "mma.sync", facts.matrix_instruction)
        assert launch.instruction != "tcgen05" or "two_dots" not in launch.kernel


@pytest.mark.parametrize("gpu", [*CATALOG, PORTABLE, *UNNAMED], ids=lambda gpu: gpu.name)
@every_kernel
def test_more_tokens_never_take_a_smaller_block(gpu, kernel):
    """One expert: tokens are tokens per expert, past every threshold."""
    blocks = [_block_m(plan_layer(gpu, LayerShape(1, 1, 2048, 512), tokens, kernel=kernel)) for tokens in range(1, 300)]
    assert blocks == sorted(blocks)


@pytest.mark.fault("FlashML-org/FreeToken#48")
@given(GPUS, SHAPES, TOKENS)
def test_a_name_changes_no_fact_of_its_capability(gpu, shape, tokens):
    """FreeToken#48: capability alone decides what is possible, a name only chooses a speed class."""
    other = Gpu("", gpu.capability)
    for mine, its in zip(
        *(_gemms(plan_layer(card, shape, tokens, kernel="prefill")) for card in (gpu, other)), strict=True
    ):
        assert (mine.arguments, mine.instruction) == (its.arguments, its.instruction)


@pytest.mark.fault("FlashML-org/FreeToken#48")
@given(st.lists(GPUS, min_size=2, max_size=4), SHAPES, TOKENS)
def test_a_card_has_its_own_answer_whoever_asked_before(cards, shape, tokens):
    """FreeToken#48: a decision was taken once per process, or for the wrong card."""
    fresh = [plan_layer.__wrapped__(gpu, shape, tokens) for gpu in cards]
    assert [plan_layer(gpu, shape, tokens) for gpu in [*cards, *reversed(cards)]] == [*fresh, *reversed(fresh)]
    for gpu, plan in zip(cards, fresh, strict=True):
        scales = {dict(launch.arguments)["scale"] for launch in _gemms(plan)}
        assert scales == {"*fp8e4nv" if architecture(gpu).native_e4m3 else "*u8"}


@given(st.sampled_from(NAMES), st.sampled_from(CAPABILITIES), SHAPES, TOKENS)
def test_what_is_unknown_is_in_the_reason(name, capability, shape, tokens):
    gpu = Gpu(name, capability)
    reason = plan_layer(gpu, shape, tokens).reason
    assert ("unknown architecture" in reason) == (not is_known(gpu))
    assert ("is no known name" in reason) == (is_known(gpu) and not has_known_name(gpu))
    assert has_known_name(gpu) or speed_class(gpu) == SAFE


def _gemms(plan: LayerPlan) -> list[Launch]:
    return [plan.launch("gate_up"), plan.launch("down")]


def _block_m(plan: LayerPlan) -> int:
    """The decode kernel has one route a program."""
    return dict(plan.launch("gate_up").constexprs).get("BLOCK_M", 1)


def _variant(launch: Launch) -> Variant:
    form = next((form for form, kernel in FORMS.items() if kernel == launch.kernel), "byte")
    return Variant(form, scale_words=dict(launch.constexprs).get("SCALE_WORDS", False))


def _tile(launch: Launch) -> Tile:
    """Of the decode kernel: the least, as it has none."""
    constants = dict(launch.constexprs)
    if "BLOCK_M" not in constants:
        return least_tile(Variant())
    return Tile(*(constants[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_KB")), launch.num_warps, launch.num_stages)
