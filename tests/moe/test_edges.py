"""Behaviour at the edges: what is refused and in which words, and what must come out of odd but legal inputs."""

import dataclasses

import pytest
import torch

from nvfp4_suite.contract import gpus
from nvfp4_suite.contract.banks import ExpertBanks
from nvfp4_suite.contract.case import Case, Inputs, random_inputs
from nvfp4_suite.contract.kernel import ACTIVATIONS, FORMATS, Kernel
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import experts
from nvfp4_suite.kernels.plan import plan_layer
from nvfp4_suite.kernels.registry import KERNELS
from nvfp4_suite.kernels.w4a4_layer import Scales
from nvfp4_suite.reference import judge

from ..engine import COMPARED, INTERPRETED, can_run
from .edges import EDGES, shape_of
from .subject import at_edge, layer_arguments, run_kernel, taken

CASE = Case(*EDGES["odd input"], inputs="random")
every_kernel = pytest.mark.parametrize(("case", "kernel"), at_edge("odd input"))


def _by_activation() -> list:
    """every_kernel's by each activation; in the interpreter kernels that differ in their GEMMs alone by one of them."""
    return [
        pytest.param(*pair.values, activation, id=f"{pair.id}-{activation}")
        for pair in at_edge("odd input")
        for activation in ACTIVATIONS
        if activation == "silu" or not (INTERPRETED and pair.values[1].name in COMPARED)
    ]


every_activation = pytest.mark.parametrize(("case", "kernel", "activation"), _by_activation())


def _changed(case: Case, **tensors) -> Inputs:
    return dataclasses.replace(random_inputs(case), **tensors)


@pytest.mark.parametrize(("case", "kernel"), taken(dataclasses.replace(CASE, format=name) for name in FORMATS))
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"hidden_states": torch.zeros(5, 64, dtype=torch.bfloat16)}, ValueError, r"hidden_states has shape \[5, 64\]"),
        ({"hidden_states": torch.zeros(48, dtype=torch.bfloat16)}, ValueError, r"should be \[tokens, 48\]"),
        (
            {"hidden_states": torch.zeros(5, 48)},
            TypeError,
            "hidden_states is torch.float32, but should be torch.bfloat16",
        ),
        ({"hidden_states": None}, TypeError, "hidden_states is NoneType"),
        (
            {"topk_ids": torch.zeros(5, 2, dtype=torch.int64)},
            TypeError,
            "topk_ids is torch.int64, but should be torch.int32",
        ),
        ({"topk_ids": torch.zeros(5, 3, dtype=torch.int32)}, ValueError, r"topk_weights has shape \[5, 2\].*\[5, 3\]"),
        ({"topk_ids": torch.zeros(4, 2, dtype=torch.int32)}, ValueError, r"topk_ids has shape \[4, 2\].*\[5, top_k\]"),
        ({"topk_weights": torch.zeros(5, 2).half()}, TypeError, "topk_weights is torch.float16"),
        ({"topk_weights": torch.zeros(10)}, ValueError, r"topk_weights has shape \[10\]"),
    ],
)
def test_a_wrong_tensor_is_named(change, error, message, case: Case, kernel: Kernel):
    inputs = random_inputs(case)
    arguments = {name: getattr(inputs, name) for name in ("hidden_states", "topk_weights", "topk_ids")} | change
    with pytest.raises(error, match=message):
        kernel.run(kernel.prepare(inputs.banks), **arguments)


@pytest.mark.fault("vllm-project/vllm#45738")
@every_kernel
def test_an_unknown_activation_is_refused(case: Case, kernel: Kernel, device):
    with pytest.raises(ValueError, match="activation is 'relu', but should be one of silu"):
        run_kernel(kernel, random_inputs(case), device, activation="relu")


@every_kernel
@pytest.mark.parametrize("name", ["activation_alpha", "activation_limit"])
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0.0, ValueError, "is 0.0, but should be above 0 and finite"),
        (-7.0, ValueError, "is -7.0, but should be above 0 and finite"),
        (float("nan"), ValueError, "is nan, but should be above 0 and finite"),
        (float("inf"), ValueError, "is inf, but should be above 0 and finite"),
        ("7", TypeError, "is a str, but should be a number"),
        (True, TypeError, "is a bool, but should be a number"),
    ],
)
def test_alpha_and_limit_must_be_positive_numbers(name, value, error, message, case: Case, kernel: Kernel, device):
    with pytest.raises(error, match=f"{name} {message}"):
        run_kernel(kernel, random_inputs(case), device, activation="swigluoai", **{name: value})


@every_kernel
def test_an_integer_limit_is_the_same_number(case: Case, kernel: Kernel, device):
    options = {"activation": "swigluoai"}
    outs = (run_kernel(kernel, random_inputs(case), device, activation_limit=limit, **options) for limit in (7, 7.0))
    judge.bitwise(*outs)


def test_the_cpu_needs_the_repaired_interpreter(monkeypatch):
    """Unrepaired, Triton's interpreter would give numbers of no use without a word."""
    monkeypatch.delattr("triton.runtime.interpreter.repaired_by_nvfp4_suite", raising=False)
    with pytest.raises(ValueError, match=r"hidden_states is on cpu, but .* import nvfp4_suite\.ci\.interpreter first"):
        experts.fused_experts(*layer_arguments(random_inputs(CASE)))


def test_an_unknown_kernel_is_refused(device):
    arguments = layer_arguments(random_inputs(CASE).to(device))
    with pytest.raises(ValueError, match="kernel is 'marlin', but should be one of auto"):
        experts.fused_experts(*arguments, kernel="marlin")


def test_banks_must_be_banks():
    inputs = random_inputs(CASE)
    with pytest.raises(TypeError, match="banks is a dict, but should be ExpertBanks"):
        experts.fused_experts(inputs.hidden_states, {}, inputs.topk_weights, inputs.topk_ids)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        (LayerShape(4, 2, 48, 32), {}, "plan is for LayerShape"),
        (CASE.shape, {"dtype": "fp16"}, "plan is for fp16, but hidden_states is torch.bfloat16"),
    ],
)
def test_a_plan_for_another_layer_is_refused(shape, options, message, device):
    plan = plan_layer(gpus.PORTABLE, shape, 5, **options)
    with pytest.raises(ValueError, match=message):
        experts.run(plan, *layer_arguments(random_inputs(CASE).to(device)))


def test_a_plan_for_no_tokens_is_refused_for_some(device):
    with pytest.raises(ValueError, match="plan is for zero tokens, but hidden_states has 5"):
        experts.run(plan_layer(gpus.PORTABLE, CASE.shape, 0), *layer_arguments(random_inputs(CASE).to(device)))


@pytest.mark.fault("sgl-project/sglang#38773")
@every_kernel
def test_no_tokens_give_an_empty_result_and_leave_the_next_call_alone(case: Case, kernel: Kernel, device):
    before = run_kernel(kernel, random_inputs(case), device)
    empty = run_kernel(kernel, random_inputs(dataclasses.replace(case, tokens=0)), device)
    assert empty.shape == (0, case.shape.hidden) and empty.dtype == torch.bfloat16
    judge.bitwise(run_kernel(kernel, random_inputs(case), device), before)


@pytest.mark.fault("vllm-project/vllm-xpu-kernels#571")
@every_kernel
def test_routes_outside_the_experts_add_exact_zeros(case: Case, kernel: Kernel, device):
    ids = torch.tensor([[0, -1], [-1, -1], [1, 0], [3, 4], [2**31 - 1, 2]], dtype=torch.int32)
    inputs = _changed(case, topk_ids=ids)
    actual = run_kernel(kernel, inputs, device)
    assert (actual[[1, 3]].view(torch.int16) == 0).all()  # +0, not -0
    silent = torch.where((ids >= 0) & (ids < 3), inputs.topk_weights, torch.zeros(()))
    same = _changed(case, topk_ids=ids.clamp(0, 2), topk_weights=silent)
    judge.bitwise(actual[[0, 2, 4]], run_kernel(kernel, same, device)[[0, 2, 4]])


@every_kernel
def test_strided_and_offset_inputs_give_the_bytes_of_their_copy(case: Case, kernel: Kernel, device):
    inputs = random_inputs(case)
    x = inputs.hidden_states
    wide = torch.full((10, x.shape[1] + 16), torch.nan, dtype=x.dtype)
    wide = wide[::2, 3 : 3 + x.shape[1]].copy_(x)
    ids = torch.full((2, 5), -1, dtype=torch.int32)
    odd = Inputs(wide, inputs.banks, inputs.topk_weights.T.contiguous().T, ids.copy_(inputs.topk_ids.T).T)
    assert not (odd.hidden_states.is_contiguous() or odd.topk_weights.is_contiguous() or odd.topk_ids.is_contiguous())
    arguments = [tensor.to(device) for tensor in (odd.hidden_states, odd.topk_weights, odd.topk_ids)]
    actual = kernel.run(kernel.prepare(inputs.banks.to(device)), *arguments)
    expected = run_kernel(kernel, inputs, device)
    judge.bitwise(actual.cpu(), expected)


@every_kernel
def test_a_misaligned_input_gives_the_bytes_of_its_copy(case: Case, kernel: Kernel, device):
    inputs = random_inputs(case).to(device)
    x = inputs.hidden_states
    flat = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)
    shifted = flat[1:].view(x.shape).copy_(x)
    assert shifted.data_ptr() % 16
    prepared = kernel.prepare(inputs.banks)
    both = [kernel.run(prepared, tensor, inputs.topk_weights, inputs.topk_ids).cpu() for tensor in (shifted, x)]
    judge.bitwise(*both)


@every_activation
def test_a_nan_stays_in_its_tokens_row(case: Case, kernel: Kernel, activation: str, device):
    inputs = random_inputs(case)
    x = inputs.hidden_states.clone()
    x[2, 7] = torch.nan
    both = (_changed(case, hidden_states=rows) for rows in (inputs.hidden_states, x))
    clean, dirty = (run_kernel(kernel, one, device, activation=activation) for one in both)
    assert dirty[2].isnan().all()
    others = [0, 1, 3, 4]
    judge.bitwise(dirty[others], clean[others])


@pytest.mark.parametrize("half", ["gate", "up"])
@every_activation
def test_a_nan_of_gate_or_up_alone_comes_through(case: Case, kernel: Kernel, activation: str, half: str, device):
    """Also through the clamps of swigluoai; expert 0 alone has the NaN, in its globals."""
    inputs = random_inputs(case)
    global_scale = inputs.banks.gate_up_global.clone()
    global_scale[0].view(2, -1)[["gate", "up"].index(half)] = torch.nan
    banks = dataclasses.replace(inputs.banks, gate_up_global=global_scale)
    out = run_kernel(kernel, _changed(case, banks=banks), device, activation=activation)
    touched = (inputs.topk_ids == 0).any(1)
    assert touched.any() and not touched.all()
    assert out[touched].isnan().all() and not out[~touched].isnan().any()


def _one_value_banks(kernel: str, code: int, scale: float, global_scale: float) -> ExpertBanks:
    """One expert. 16 rows of gate and of up have 16 weights each, all the same; the others are 0. Of down all are 1."""
    shape = shape_of("known sums", kernel)
    n, k = shape.intermediate, shape.hidden
    packed = torch.zeros(1, 2 * n, k // 2, dtype=torch.uint8)
    packed.unflatten(1, (2, n))[:, :, :16, :8] = code * 0x11
    scales = torch.full((1, 2 * n, k // 16), scale).to(torch.float8_e4m3fn)
    ones = torch.ones(1, k, n // 16).to(torch.float8_e4m3fn)
    down = torch.full((1, k, n // 2), 0x22, dtype=torch.uint8)
    return ExpertBanks(packed, scales, torch.full((1, 2 * n), global_scale), down, ones, torch.ones(1, k))


def _here(name: str) -> list:
    kernels = [kernel for kernel in KERNELS.values() if name in kernel.promise.formats and can_run(kernel)]
    return [pytest.param(kernel, id=kernel.name) for kernel in kernels]


@pytest.mark.fault("vllm-project/vllm#37135")
@pytest.mark.parametrize("kernel", _here("w4a16"))
def test_fp16_overflows_only_where_the_true_result_does(kernel: Kernel, device):
    """x 8, codes 6.0, scale 448, global 2^-13: the sum is 344,064, but gate and up are 42, silu(42) * 42 is 1764."""
    banks = _one_value_banks(kernel.name, code=7, scale=448.0, global_scale=2.0**-13)
    x = torch.full((2, banks.hidden), 8.0, dtype=torch.float16)
    x[1] = 64.0  # gate and up are 336, and their product is beyond fp16
    out = run_kernel(kernel, Inputs(x, banks, torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.int32)), device)
    assert (out[0] == 16 * 1764).all()
    assert (out[1] == torch.inf).all()


@pytest.mark.parametrize("kernel", _here("w4a4"))
def test_fp16_overflows_only_where_the_true_result_does_with_quantized_activations(kernel: Kernel, device):
    """x 6, codes 6.0, scale 448, global 2^-12: the sum is 258,048, but gate and up are 63, silu(63) * 63 is 3969.

    The second input scale makes that 6 exactly, and down's alpha makes a route of 16 of them 15,876, in fp16 15,872.
    """
    banks = _one_value_banks(kernel.name, code=7, scale=448.0, global_scale=2.0**-12)
    scales = {"gate_up_input_scale": torch.ones(1), "down_input_scale": torch.tensor([3969 / 6])}
    banks = dataclasses.replace(banks, down_global=torch.full((1, banks.hidden), 0.25), **scales)
    x = torch.full((3, banks.hidden), 6.0, dtype=torch.float16)
    x[1], x[2] = 48.0, torch.nan  # gate and up are 504, and a route of 254,016 / 4 * 16 is beyond fp16
    out = run_kernel(kernel, Inputs(x, banks, torch.ones(3, 1), torch.zeros(3, 1, dtype=torch.int32)), device)
    assert (out[0] == 15872).all()
    assert (out[1] == torch.inf).all()
    assert out[2].isnan().all()


@pytest.mark.parametrize("kernel", _here("w4a4"))
@pytest.mark.parametrize("name", ["gate_up_input_scale", "down_input_scale"])
@pytest.mark.parametrize(
    ("value", "message"),
    [(None, "is None, but should be given"), *((v, "should be finite and above 0") for v in (0.0, -1.0, torch.inf))],
)
def test_w4a4_needs_input_scales(kernel: Kernel, name: str, value: float | None, message: str, device):
    banks = random_inputs(dataclasses.replace(CASE, format="w4a4")).banks
    names = ("gate_up_input_scale", "down_input_scale")
    wrong = dict.fromkeys(names) if value is None else {name: torch.tensor([1.0, value, 1.0])}
    missing = names[0] if value is None else name
    with pytest.raises(ValueError, match=f"{missing}.*{message}"):
        kernel.prepare(dataclasses.replace(banks, **wrong))


def test_a_w4a4_plan_needs_input_scales(device):
    with pytest.raises(ValueError, match="input_scales is False, but should be True for w4a4"):
        experts.fused_experts(*layer_arguments(random_inputs(CASE).to(device)), kernel="w4a4")


def test_input_scales_of_other_experts_are_the_largest_ones(device):
    """Each GEMM's input has one scale for the layer: what the others say does not matter while they are smaller."""
    kernel, inputs = KERNELS["prefill_w4a4"], random_inputs(dataclasses.replace(CASE, format="w4a4"))
    largest = inputs.banks.gate_up_input_scale.max()
    banks = dataclasses.replace(inputs.banks, gate_up_input_scale=torch.stack([largest / 7, largest, largest / 3]))
    judge.bitwise(*(run_kernel(kernel, one, device) for one in (inputs, dataclasses.replace(inputs, banks=banks))))


def test_scales_that_were_computed_before_give_the_same_bytes(device):
    inputs = random_inputs(dataclasses.replace(CASE, format="w4a4")).to(device)
    prepared = Scales.of(inputs.banks)
    outs = [experts.fused_experts(*layer_arguments(inputs), kernel="w4a4", scales=one) for one in (None, prepared)]
    judge.bitwise(*(out.cpu() for out in outs))
