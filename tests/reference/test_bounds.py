"""The enclosure holds whatever a tensor core may give, for every activation and special value, and it is narrow."""

import math

import pytest
import torch

from nvfp4_suite.contract.banks import ExpertBanks
from nvfp4_suite.contract.case import Case, random_inputs, torch_dtype
from nvfp4_suite.contract.kernel import ACTIVATIONS
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.reference import bounds, moe
from nvfp4_suite.reference.bounds import Range

F64 = torch.float64
DTYPES = ("bf16", "fp16")
SMALL = LayerShape(4, 2, 64, 32)


def layer(tokens=5, shape=SMALL, routing="random", **options):
    case = Case(shape, tokens, routing, "random", **options)
    return case, random_inputs(case)


def arguments(inputs):
    return inputs.hidden_states, inputs.banks, inputs.topk_weights, inputs.topk_ids


def assert_inside(result: torch.Tensor, interval: bounds.Interval):
    outside = ~((interval.lower <= result) & (result <= interval.upper))
    assert not outside.any(), f"{outside.sum()} of {outside.numel()} outside, first at {outside.nonzero()[0].tolist()}"


# ---- a kernel as it may be: its sums on a simulated tensor core, its activation in sloppy fp32


def tensor_core_sums(
    x: torch.Tensor, weight: torch.Tensor, order: torch.Tensor, step: int, smallest: int
) -> torch.Tensor:
    """x [R, K] @ weight.T [K, N], `step` products at a time in the given order of K, aligned and cut off.

    A product is aligned by the exponents of its factors; `smallest` is the least that an activation may have.
    """
    total = x.new_zeros(len(x), len(weight))
    for ks in order.split(step):
        addends = torch.cat([(x[:, None, ks] * weight[None, :, ks]), total[..., None]], dim=2)
        aligned_by = exponent(x).clamp(min=smallest)[:, None, ks] + exponent(weight)[None, :, ks]
        aligned_by = torch.cat([aligned_by, exponent(total)[..., None]], dim=2)
        unit = torch.where(addends == 0, -1000, aligned_by).amax(2, keepdim=True) - 23
        total = cut_to_fp32(torch.ldexp(torch.ldexp(addends, -unit).trunc(), unit).sum(2))
    return total


def exponent(x: torch.Tensor) -> torch.Tensor:
    return x.frexp().exponent - 1


def cut_to_fp32(x: torch.Tensor) -> torch.Tensor:
    unit = exponent(x) - 23
    return torch.ldexp(torch.ldexp(x, -unit).trunc(), unit)


def orders(k: int) -> dict[str, torch.Tensor]:
    forward = torch.arange(k)
    shuffled = torch.randperm(k, generator=torch.Generator().manual_seed(7))
    return {"forward": forward, "even_then_odd": torch.cat([forward[::2], forward[1::2]]), "shuffled": shuffled}


def sloppy_f(activation: moe.Activation, gate: torch.Tensor) -> torch.Tensor:
    """f in fp32 with each primitive as far off as it may be, in the direction that adds up."""
    x = gate.float()
    if activation.name == "gelu":
        erf = nudged(torch.erf(x * 0.5**0.5), 2)
        return (x * (0.5 * (1 + erf))).double()
    z = activation.exponent(x)  # fp32 throughout: x is
    e = nudged(torch.exp2((-z * math.log2(math.e)).double()).float(), 2)
    return (x * nudged(1 / (1 + e), -2)).double()


def nudged(x: torch.Tensor, ulps: int) -> torch.Tensor:
    for _ in range(abs(ulps)):
        x = torch.nextafter(x, torch.full_like(x, math.copysign(math.inf, ulps)))
    return x


@pytest.mark.parametrize(("order", "step"), [("forward", 16), ("even_then_odd", 8), ("shuffled", 4)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_tensor_core_kernel_stays_inside(monkeypatch, activation, dtype, order, step):
    case, inputs = layer(tokens=3, shape=LayerShape(2, 2, 48, 32), activation=activation, dtype=dtype)
    interval = bounds.enclose(*arguments(inputs), **case.options)
    smallest = exponent(torch.tensor(torch.finfo(torch_dtype(dtype)).tiny)).item()

    def sums(x, weight):
        return tensor_core_sums(x, weight, orders(x.shape[1])[order], step, smallest)

    monkeypatch.setattr(moe, "_sums", sums)
    monkeypatch.setattr(moe.Activation, "f", sloppy_f)
    assert_inside(moe.expert_layer(*arguments(inputs), **case.options, rounding="w4a16"), interval)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_core_kernel_with_a_long_k_stays_inside(monkeypatch, dtype):
    case, inputs = layer(tokens=1, shape=LayerShape(1, 1, 1024, 16), dtype=dtype)
    interval = bounds.enclose(*arguments(inputs), **case.options)
    monkeypatch.setattr(moe, "_sums", lambda x, w: tensor_core_sums(x, w, torch.arange(x.shape[1]), 4, -126))
    assert_inside(moe.expert_layer(*arguments(inputs), **case.options, rounding="w4a16"), interval)


# ---- sums


def sums_of(x: torch.Tensor, weight: torch.Tensor, tiny=2.0**-126) -> Range:
    return bounds._sums(Range.point(x), weight, tiny)


@pytest.mark.parametrize("step", [4, 8, 16])
@pytest.mark.parametrize("spread", [0, 8, 20])
def test_sums_of_products_of_any_size_are_enclosed(spread, step):
    """Positive products first, so that partial sums are as large as they can be, then the negative ones."""
    generator = torch.Generator().manual_seed(spread)
    x = torch.randn(4, 256, generator=generator).bfloat16().double()
    x = torch.ldexp(x, torch.randint(-spread, spread + 1, x.shape, generator=generator))
    weight = torch.randn(8, 256, generator=generator).bfloat16().double().sort(dim=1, descending=True).values
    x = x.abs()
    total = sums_of(x, weight)
    cut = tensor_core_sums(x, weight, torch.arange(256), step, -126)
    assert (cut != x @ weight.T).any()
    assert ((total.lower <= cut) & (cut <= total.upper)).all()


def test_nearly_the_worst_case_is_enclosed():
    """One product of 1, and 255 just below the last bit of a partial sum: all of them are lost."""
    x, weight = torch.ones(1, 256, dtype=F64), torch.tensor([[1.0] + [(2 - 2**-7) * 2.0**-24] * 255], dtype=F64)
    cut = tensor_core_sums(x, weight, torch.arange(256), 4, -126)
    assert cut.item() == 1.0
    total = sums_of(x, weight)
    assert total.lower.item() < cut.item()
    assert (x @ weight.T).item() - cut.item() > 0.4 * ((x @ weight.T).item() - total.lower.item())


def test_subnormal_activations_that_are_aligned_as_if_normal_are_enclosed():
    """2^-24 * 2688 is aligned by 2^-14 * 2048 and cuts the others off above their last bits."""
    x = torch.tensor([[2.0**-24] + [(1 + 2**-10) * 2.0**-14] * 3], dtype=F64)
    weight = torch.tensor([[2688.0] + [2**-10 * 1.5] * 3], dtype=F64)
    cut = tensor_core_sums(x, weight, torch.arange(4), 4, -14)
    exact = x @ weight.T
    assert (exact - cut).abs().item() > 8 * 2.0**-23 * exact.item()
    total = sums_of(x, weight, tiny=2.0**-14)
    assert (total.lower <= cut).item()


def test_a_sum_of_zeros_is_exactly_zero():
    total = sums_of(torch.zeros(2, 16, dtype=F64), torch.ones(3, 16, dtype=F64))
    assert torch.equal(total.lower, torch.zeros(2, 3, dtype=F64))
    assert torch.equal(total.upper, torch.zeros(2, 3, dtype=F64))


def test_uncertain_terms_widen_a_sum_by_what_they_may_add():
    x = Range(torch.tensor([[1.0, 2.0]], dtype=F64), torch.tensor([[1.0, 4.0]], dtype=F64))
    total = bounds._sums(x, torch.tensor([[1.0, -3.0]], dtype=F64), 2.0**-126)
    assert total.lower.item() == pytest.approx(-11, abs=1e-4)
    assert total.upper.item() == pytest.approx(-5, abs=1e-4)
    assert total.lower.item() < -11 < -5 < total.upper.item()


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("lower", "upper", "weight", "ends"),
    [
        ([INF, 1.0], [INF, 1.0], [1.0, 1.0], (INF, INF)),
        ([INF, -INF], [INF, -INF], [1.0, 1.0], (NAN, NAN)),
        ([INF, 1.0], [INF, 1.0], [0.0, 1.0], (NAN, NAN)),
        ([NAN, 1.0], [NAN, 1.0], [1.0, 1.0], (NAN, NAN)),
        ([65504.0, 1.0], [INF, 1.0], [1.0, 1.0], (-INF, INF)),
        ([INF, 65504.0], [INF, INF], [1.0, -1.0], (-INF, INF)),
        ([-INF, NAN], [INF, NAN], [1.0, 1.0], (NAN, NAN)),
        ([2.0**127, 2.0**127], [2.0**127, 2.0**127], [1.0, 1.0], (-INF, INF)),
        ([2.0**127, 2.0**127, 1.0], [2.0**127, 2.0**127, 1.0], [1.0, 1.0, -1.0], (-INF, INF)),
    ],
)
def test_infinities_and_nans_in_sums(lower, upper, weight, ends):
    x = Range(torch.tensor([lower], dtype=F64), torch.tensor([upper], dtype=F64))
    total = bounds._sums(x, torch.tensor([weight], dtype=F64), 2.0**-126)
    assert [total.lower.item(), total.upper.item()] == pytest.approx(ends, nan_ok=True)


# ---- products and activations


def scalar(lower: float, upper: float) -> Range:
    return Range(torch.tensor([lower], dtype=F64), torch.tensor([upper], dtype=F64))


@pytest.mark.parametrize(
    ("a", "b", "ends"),
    [
        ((-2, 3), (-5, 7), (-15, 21)),
        ((-2, -1), (3, 3), (-6, -3)),
        ((INF, INF), (0, 0), (NAN, NAN)),
        ((INF, INF), (0, 1), (-INF, INF)),
        ((5, INF), (2, 2), (10, INF)),
        ((-INF, INF), (0, 0), (-INF, INF)),
        ((NAN, NAN), (0, 1), (NAN, NAN)),
        ((-INF, INF), (NAN, NAN), (NAN, NAN)),
    ],
)
def test_products_of_intervals(a, b, ends):
    for x, y in ((a, b), (b, a)):
        product = scalar(*x) * scalar(*y)
        assert [product.lower.item(), product.upper.item()] == pytest.approx(ends, nan_ok=True)


@pytest.mark.parametrize(
    ("a", "b", "ends"),
    [
        ((1, 2), (-5, 7), (-4, 9)),
        ((INF, INF), (-INF, -INF), (NAN, NAN)),
        ((-INF, INF), (INF, INF), (-INF, INF)),
        ((-INF, INF), (NAN, NAN), (NAN, NAN)),
    ],
)
def test_sums_of_intervals(a, b, ends):
    for x, y in ((a, b), (b, a)):
        total = scalar(*x) + scalar(*y)
        assert [total.lower.item(), total.upper.item()] == pytest.approx(ends, nan_ok=True)


def all_values(dtype: str) -> torch.Tensor:
    """Every finite value of `dtype`, ascending, as float64."""
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch_dtype(dtype)).double()
    return x[x.isfinite()].sort().values


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_value_of_f_in_fp32_is_enclosed(name, dtype):
    activation = moe.Activation(name)
    gate, _ = activation.clamp(x := all_values(dtype), x)
    enclosed = bounds._f(Range.point(gate), activation)
    for value in (activation.f(gate), sloppy_f(activation, gate)):
        assert ((enclosed.lower <= value) & (value <= enclosed.upper)).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_f_is_enclosed_on_intervals_that_hold_its_minimum(name):
    activation = moe.Activation(name)
    x = torch.linspace(-6, 2, 801, dtype=F64)
    for start in range(0, 700, 13):
        for length in (0, 1, 10, 100):
            inner = x[start : start + length + 1]
            enclosed = bounds._f(scalar(inner[0].item(), inner[-1].item()), activation)
            values = activation.f(inner)
            assert enclosed.lower.item() <= values.min() and values.max() <= enclosed.upper.item()
            assert enclosed.upper.item() - values.max() < 1e-5  # and is no wider than the error of fp32
            assert values.min() - enclosed.lower.item() < 1e-4  # nor than what lies between two of these x


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_f_is_lowest_where_it_is_said_to_be(name):
    activation = moe.Activation(name)
    x = bounds._lowest_at(activation) + torch.tensor([-1e-4, 0, 1e-4], dtype=F64)
    left, lowest, right = activation.f(x).tolist()
    assert left - lowest > 0 and right - lowest > 0
    assert left - lowest == pytest.approx(right - lowest, rel=1e-3, abs=0)


@pytest.mark.parametrize(
    ("name", "lower", "upper", "ends"),
    [
        ("silu", INF, INF, (INF, INF)),
        ("silu", NAN, NAN, (NAN, NAN)),
        ("silu", -INF, -INF, (NAN, NAN)),
        ("silu", -INF, -65504.0, (-INF, INF)),
        ("gelu", -INF, INF, (-INF, INF)),
        ("swigluoai", -INF, 7.0, (-INF, INF)),
    ],
)
def test_infinities_and_nans_in_activations(name, lower, upper, ends):
    enclosed = bounds._f(scalar(lower, upper), moe.Activation(name))
    assert [enclosed.lower.item(), enclosed.upper.item()] == pytest.approx(ends, nan_ok=True)


# ---- the layer


@pytest.mark.parametrize("routing", ["random", "hot", "twice", "dropped"])
@pytest.mark.parametrize("weight_on_input", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_expected_output_lies_in_its_enclosure(activation, dtype, weight_on_input, routing):
    options = {"activation": activation, "dtype": dtype, "weight_on_input": weight_on_input}
    case, inputs = layer(routing=routing, **options)
    interval = bounds.enclose(*arguments(inputs), **case.options)
    assert torch.equal(interval.expected, moe.expert_layer(*arguments(inputs), **case.options, rounding="w4a16"))
    assert interval.dtype == torch_dtype(dtype)
    assert_inside(interval.expected, interval)
    for end in (interval.lower, interval.upper):
        assert torch.equal(end.to(interval.dtype).double(), end)


@pytest.mark.parametrize(("dtype", "hidden"), [("bf16", 64), ("bf16", 272), ("fp16", 64), ("fp16", 272)])
def test_with_a_short_k_an_error_of_one_percent_shows_in_most_elements(dtype, hidden):
    case, inputs = layer(tokens=8, shape=LayerShape(4, 2, hidden, 32), dtype=dtype)
    interval = bounds.enclose(*arguments(inputs), **case.options)
    width = interval.upper - interval.lower
    assert width.median() < 0.01 * interval.expected.square().mean().sqrt()


def test_with_a_short_k_and_bf16_most_elements_have_one_right_value():
    case, inputs = layer(tokens=8)
    interval = bounds.enclose(*arguments(inputs), **case.options)
    assert (interval.lower == interval.upper).double().mean() > 0.5


def test_a_nan_is_required_in_its_row_alone():
    case, inputs = layer()
    inputs.hidden_states[2, 5] = NAN
    interval = bounds.enclose(*arguments(inputs), **case.options)
    assert interval.lower[2].isnan().all() and interval.upper[2].isnan().all()
    assert interval.lower[[0, 1, 3, 4]].isfinite().all()


def test_a_token_without_an_expert_is_exactly_zero():
    case, inputs = layer()
    inputs.topk_ids[1] = torch.tensor([-1, 4])
    interval = bounds.enclose(*arguments(inputs), **case.options)
    assert not interval.lower[1].any() and not interval.upper[1].any()


def one_expert(gate_global: float, up_global: float, down_global: float, hidden: int = 16) -> ExpertBanks:
    """I = 16 and every weight 1: each sum is the sum of its inputs."""
    gate_up = torch.full((1, 32, hidden // 2), 0x22, dtype=torch.uint8), ones((1, 32, hidden // 16))
    down = torch.full((1, hidden, 8), 0x22, dtype=torch.uint8), ones((1, hidden, 1))
    gate_up_global = torch.tensor([[gate_global] * 16 + [up_global] * 16])
    return ExpertBanks(*gate_up, gate_up_global, *down, torch.full((1, hidden), down_global))


def ones(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.full(shape, 0x38, dtype=torch.uint8).view(torch.float8_e4m3fn)


def enclosed_with_ones(banks: ExpertBanks) -> bounds.Interval:
    x = torch.ones(1, banks.hidden, dtype=torch.float16)
    return bounds.enclose(x, banks, torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int32))


def ends_of(interval: bounds.Interval) -> tuple[float, float]:
    return interval.lower[0, 0].item(), interval.upper[0, 0].item()


def test_an_fp16_overflow_is_required_where_it_is_certain():
    """Every gate and up is 16, so that a sum of the down projection is 16^3."""
    assert ends_of(enclosed_with_ones(one_expert(1.0, 1.0, down_global=64.0))) == (INF, INF)


def test_an_fp16_overflow_is_allowed_where_the_upper_end_overflows():
    """65520 is the midpoint behind fp16's largest number: the last bits of the sums decide."""
    assert ends_of(enclosed_with_ones(one_expert(1.0, 1.0, down_global=65520 / 16**3))) == (65504.0, INF)
    assert ends_of(enclosed_with_ones(one_expert(1.0, 1.0, down_global=65000 / 16**3)))[1] < INF


def test_behind_an_uncertain_overflow_anything_is_right():
    """gate is 65504 or inf, and up so small that gate * up may stay finite."""
    assert ends_of(enclosed_with_ones(one_expert(65520 / 16, 2.0**-14, down_global=1.0))) == (-INF, INF)


def test_bad_arguments_are_named():
    case, inputs = layer()
    with pytest.raises(ValueError, match="activation is 'relu'"):
        bounds.enclose(*arguments(inputs), **(case.options | {"activation": "relu"}))
    with pytest.raises(ValueError, match="hidden is 262160 and intermediate 16, but both should be <= 262144"):
        enclosed_with_ones(one_expert(1.0, 1.0, 1.0, hidden=2**18 + 16))
