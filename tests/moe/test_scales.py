"""The scales that W4A4 needs are computed once for banks, not in each call: that would wait for the GPU each time."""

import dataclasses
import gc

import pytest
import torch

from nvfp4_suite.contract.banks import ExpertBanks
from nvfp4_suite.contract.case import Case, Inputs, random_inputs
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import experts, w4a4_layer
from nvfp4_suite.kernels.w4a4_layer import Scales
from nvfp4_suite.reference import judge

from .subject import layer_arguments

CASE = Case(LayerShape(3, 2, 48, 32), 5, inputs="random", format="w4a4")
RTX_5090 = Gpu("NVIDIA GeForce RTX 5090", (12, 0))


@pytest.fixture
def computed(monkeypatch) -> list[ExpertBanks]:
    """The banks whose scales were computed, in order."""
    found, of = [], Scales.of.__func__
    monkeypatch.setattr(Scales, "of", classmethod(lambda cls, banks: found.append(banks) or of(cls, banks)))
    return found


def own(inputs: Inputs) -> Inputs:
    """The same inputs with tensors of their own."""
    banks = ExpertBanks(**{name: tensor.clone() for name, tensor in inputs.banks.tensors()})
    return dataclasses.replace(inputs, banks=banks)


def test_two_calls_compute_them_once(computed, device):
    inputs = own(random_inputs(CASE).to(device))
    outs = [experts.fused_experts(*layer_arguments(inputs), kernel="w4a4").cpu() for _ in range(2)]
    assert computed == [inputs.banks]
    judge.bitwise(*outs)


def test_each_banks_have_their_own(computed, device):
    one, other = (own(random_inputs(CASE).to(device)) for _ in range(2))
    other.banks.gate_up_input_scale.mul_(2)
    scales = [Scales.remembered(inputs.banks) for inputs in (one, other, one, other)]
    assert computed == [one.banks, other.banks]
    assert scales[:2] == scales[2:]
    assert torch.equal(2 * scales[0].gate_up_alpha, scales[1].gate_up_alpha)


@pytest.mark.parametrize("name", ["gate_up_input_scale", "gate_up_global", "down_input_scale", "down_global"])
def test_banks_that_were_written_to_get_new_ones(name: str, computed, device):
    banks = own(random_inputs(CASE).to(device)).banks
    before = Scales.remembered(banks)
    getattr(banks, name).mul_(2)
    after, alpha = Scales.remembered(banks), name.split("_input")[0].split("_global")[0] + "_alpha"
    assert torch.equal(2 * getattr(before, alpha), getattr(after, alpha))
    assert Scales.remembered(banks) is after


def test_tensors_of_inference_mode_do_not_count_what_is_written_to_them(computed, device):
    with torch.inference_mode():
        banks = own(random_inputs(CASE).to(device)).banks
        assert Scales.remembered(banks) is Scales.remembered(banks)


def test_banks_that_are_gone_leave_nothing(device):
    before = len(w4a4_layer._REMEMBERED)
    banks = own(random_inputs(CASE).to(device)).banks
    Scales.remembered(banks)
    assert len(w4a4_layer._REMEMBERED) == before + 1
    del banks
    gc.collect()
    assert len(w4a4_layer._REMEMBERED) == before


def test_a_first_call_inside_a_capture_is_refused_and_a_second_one_is_not(computed, monkeypatch):
    """Made up here; tests/launch/test_graph.py has a real one."""
    first, second = own(random_inputs(CASE)).banks, own(random_inputs(CASE)).banks
    Scales.remembered(second)
    monkeypatch.setattr(ExpertBanks, "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(
        ValueError, match=r"scales is None, but should be Scales\.of\(banks\), computed before the graph"
    ):
        Scales.remembered(first)
    assert Scales.remembered(second) and computed == [second]


def test_what_is_no_scales_is_refused(device):
    with pytest.raises(TypeError, match="scales is a dict, but should be Scales or None"):
        experts.fused_experts(*layer_arguments(random_inputs(CASE).to(device)), kernel="w4a4", scales={})


@pytest.mark.parametrize("tokens", [4, 6])  # of 3 experts, top 2: 2.67 and 4 tokens per expert
@pytest.mark.parametrize("has_scales", [False, True])
def test_dispatch_asks_the_banks_for_them(tokens: int, has_scales: bool, computed, monkeypatch):
    """On FP4 hardware, from 4 tokens per expert, and only where they are."""
    inputs = random_inputs(dataclasses.replace(CASE, tokens=tokens))
    banks = inputs.banks if has_scales else inputs.banks.without_input_scales()
    monkeypatch.setattr(experts, "gpu_of", lambda device: RTX_5090)
    monkeypatch.setattr(experts, "release", lambda: "3.8.0")
    planned = []
    monkeypatch.setattr(experts, "run", lambda plan, *_, **__: planned.append(plan.kernel))
    experts.fused_experts(*layer_arguments(dataclasses.replace(inputs, banks=banks)))
    assert planned == ["prefill_w4a4_native" if has_scales and tokens == 6 else "prefill_w4a16"]
