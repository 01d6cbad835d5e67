"""Plans take numbers, flags and names of their own types: nothing that merely equals one, or counts as one."""

import math

import pytest

from nvfp4_suite.contract.gpus import CATALOG, PORTABLE, Gpu
from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape
from nvfp4_suite.kernels.linear_plan import plan_linear
from nvfp4_suite.kernels.plan import MOST_EXPERTS, MOST_ROUTES, plan_layer
from nvfp4_suite.kernels.releases import NO_ASSEMBLER, TRITONS
from nvfp4_suite.kernels.tiles import Tile

H200 = Gpu("NVIDIA H200", (9, 0))
THOR = Gpu("NVIDIA Thor", (11, 0))
QWEN = CHECKPOINTS["Qwen3.6-35B-A3B"]
NO_NUMBERS = [7.0, True, 1.5, math.nan, math.inf, "5", None]

TAKERS = {
    **{name: lambda value, name=name: plan_layer(H200, QWEN, **{name: value}) for name in ("tokens",)},
    **{
        name: lambda value, name=name: plan_linear(H200, **({"m": 7, "n": 64, "k": 64} | {name: value}))
        for name in ("m", "n", "k")
    },
    **{
        name: lambda value, name=name: LayerShape(
            **({"experts": 4, "top_k": 2, "hidden": 64, "intermediate": 64} | {name: value})
        )
        for name in ("experts", "top_k", "hidden", "intermediate")
    },
    **{
        name: lambda value, name=name: Tile(**({"block_m": 16} | {name: value}))
        for name in ("block_m", "block_n", "block_kb", "num_warps", "num_stages")
    },
    "capability's number": lambda value: Gpu("card", (9, value)),
}
every_taker = pytest.mark.parametrize("name", TAKERS)


@every_taker
@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_a_number_is_an_int(name, value):
    """The plans for 7 and 1 are remembered: 7.0 and True must not find them."""
    plan_layer(H200, QWEN, 7), plan_layer(H200, QWEN, 1), plan_linear(H200, 7, 64, 64), plan_linear(H200, 1, 64, 64)
    with pytest.raises(TypeError, match=rf"{name} is {value!r}, but should be a whole number"):
        TAKERS[name](value)


@every_taker
@pytest.mark.parametrize("value", [2**31, 10**400, 10**5000], ids=["2^31", "10^400", "10^5000"])
def test_a_number_is_an_int32(name, value):
    with pytest.raises(
        ValueError, match=rf"{name} is a number of {value.bit_length()} bits, but should be below 2\^31"
    ):
        TAKERS[name](value)


@pytest.mark.parametrize("name", ["weight_on_input", "input_scales"])
@pytest.mark.parametrize("value", ["no", "", 0, 1, 1.0, None], ids=repr)
def test_a_flag_is_a_bool(name, value):
    """bool("no") is True; and 1 must not find the plan of True."""
    plan_layer(H200, QWEN, 64, **{name: True}), plan_layer(H200, QWEN, 64, **{name: False})
    with pytest.raises(TypeError, match=f"{name} is {value!r}, but should be True or False"):
        plan_layer(H200, QWEN, 64, **{name: value})


@pytest.mark.parametrize("split_k", [1.0, 2.0, True])
def test_a_split_is_an_int(split_k):
    plan_linear(H200, 7, 64, 64, split_k=1), plan_linear(H200, 7, 64, 64, split_k=2)
    with pytest.raises(ValueError, match=f"split_k is {split_k}, but should be one of auto, 1, 2"):
        plan_linear(H200, 7, 64, 64, split_k=split_k)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("H200", QWEN, 1), {}, "gpu is 'H200', but should be a Gpu"),
        ((H200, (256, 8, 2048, 512), 1), {}, r"shape is \(256, 8, 2048, 512\), but should be a LayerShape"),
        ((H200, QWEN, 1), {"override": (16, 64, 32, 4, 3)}, r"override is \(16, 64, 32, 4, 3\), but should be a Tile"),
        ((H200, QWEN, 1), {"kernel": ["auto"]}, r"kernel is \['auto'\], but should be a value that can be remembered"),
        ((H200, QWEN, 1), {"no_such": 1}, "no_such"),
    ],
)
def test_what_is_no_such_thing_is_named(arguments, options, message):
    with pytest.raises(TypeError, match=message):
        plan_layer(*arguments, **options)


@pytest.mark.parametrize("capability", [[9, 0], (9,), (9, 0, 0), 90, "90"], ids=repr)
def test_a_capability_is_two_numbers(capability):
    with pytest.raises(TypeError, match=r"capability is .*, but should be \(major, minor\) or None"):
        Gpu("card", capability)


def test_a_name_is_a_text():
    with pytest.raises(TypeError, match="name is None, but should be a str"):
        Gpu(None, (9, 0))


@pytest.mark.parametrize("kernel", ["auto", "prefill", "decode"])
def test_more_experts_than_the_gated_binary_has_are_refused(kernel):
    plan_layer(H200, LayerShape(MOST_EXPERTS, 1, 64, 64), 1, kernel=kernel)
    with pytest.raises(ValueError, match="experts is 513, but should be at most 512"):
        plan_layer(H200, LayerShape(513, 1, 64, 64), 1, kernel=kernel)


def test_every_layer_of_so_many_experts_has_the_gated_binary():
    few, many = (plan_layer(H200, LayerShape(experts, 1, 64, 64), 4096) for experts in (1, MOST_EXPERTS))
    assert few.launch("list_blocks").constexpr("EXPERTS") == MOST_EXPERTS
    assert many.launch("list_blocks").constexpr("EXPERTS") == MOST_EXPERTS


@pytest.mark.parametrize("top_k", [1, 8])
def test_more_routes_than_int32_counts_are_refused(top_k):
    """Of 512 experts, counts[chunk, expert] of 2^29 routes in chunks of 128 are 2^31: the last index is 2^31 - 1."""
    shape = LayerShape(MOST_EXPERTS, top_k, 64, 64)
    plan_layer(H200, shape, MOST_ROUTES // top_k)
    with pytest.raises(ValueError, match=f"tokens . top_k is {MOST_ROUTES + top_k}, but should be at most {2**29}"):
        plan_layer(H200, shape, MOST_ROUTES // top_k + 1)


@pytest.mark.parametrize(
    "plan", [lambda **o: plan_layer(THOR, QWEN, 64, **o), lambda **o: plan_linear(THOR, 1, 64, 64, **o)]
)
def test_a_release_that_cannot_assemble_for_the_gpu_is_refused(plan):
    with pytest.raises(ValueError, match=r"triton is '3\.6\.0', but should be a later one for NVIDIA Thor: .* sm_110a"):
        plan(triton="3.6.0")
    with pytest.raises(ValueError, match=r"triton is '2\.1\.0', but should be one of 3\.6\.0, 3\.7\.1"):
        plan(triton="2.1.0")
    assert plan(triton="3.8.0").launches


def test_every_other_card_has_plans_under_every_release():
    assert NO_ASSEMBLER == {(11, 0): ("3.6.0",)}
    for gpu in (*CATALOG, PORTABLE):
        for triton in TRITONS[gpu.capability == (11, 0) :]:
            assert plan_layer(gpu, QWEN, 64, triton=triton).launches and plan_linear(gpu, 1, 64, 64, triton=triton)
