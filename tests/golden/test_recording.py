"""Digests byte for byte, and that nothing wrong becomes a digest."""

import hashlib
from dataclasses import replace

import pytest
import torch

from nvfp4_suite.ci import recording
from nvfp4_suite.ci.golden_due import Task
from nvfp4_suite.ci.outcomes import Outcome, Refused
from nvfp4_suite.ci.recording import Engine
from nvfp4_suite.contract.case import Case, random_inputs
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import registry
from nvfp4_suite.kernels.registry import PlannedKernel
from nvfp4_suite.reference.draws import layer

REFERENCE, INTERPRETER = Engine("reference", "cpu", {}), Engine("interpreter", "cpu", {})
SMALL = Case(LayerShape(2, 1, 16, 16), 3)
REAL = Case(LayerShape(2, 1, 16, 32), 3, inputs="random")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_digest_is_that_of_a_header_and_little_endian_elements():
    bf16 = torch.tensor([[1.0, -2.0, 0.0], [-0.0, 0.5, torch.inf]], dtype=torch.bfloat16)
    elements = bytes.fromhex("803f 00c0 0000 0080 003f 807f")
    assert recording.digest(bf16) == sha256(b"bfloat16 2x3\n" + elements)
    assert recording.digest(torch.tensor([1.5], dtype=torch.float16)) == sha256(b"float16 1\n" + bytes.fromhex("003e"))
    assert recording.digest(torch.tensor([1.5])) == sha256(b"float32 1\n" + bytes.fromhex("0000c03f"))


def test_a_digest_of_no_element_has_its_shape():
    assert recording.digest(torch.empty(0, 48, dtype=torch.bfloat16)) == sha256(b"bfloat16 0x48\n")


def test_a_digest_is_of_the_values_and_not_of_their_strides():
    square = torch.arange(4, dtype=torch.float16).view(2, 2)
    assert recording.digest(square.T) == recording.digest(square.T.contiguous()) != recording.digest(square)


def outcome_of(case: Case, kernel: str | None = None) -> Outcome:
    """By the reference without a kernel, which else is interpreted."""
    return recording.outcome(INTERPRETER if kernel else REFERENCE, Task(case, "w4a16", kernel))


def test_the_reference_gives_a_digest_of_its_output():
    expected = recording.reference_output(layer.draw(SMALL), SMALL, "w4a16")
    assert (expected.dtype, expected.shape) == (torch.bfloat16, (3, 16))
    assert outcome_of(SMALL) == Outcome(recording.digest(expected))


class Echo(PlannedKernel):
    """Gives the reference's output, with `fault` in one element."""

    fault = 0

    def run(self, banks, hidden_states, *arguments, **options):
        case = SMALL if banks.intermediate == 16 else REAL
        inputs = layer.draw(case) if case == SMALL else random_inputs(case)
        expected = recording.reference_output(inputs, case, "w4a16")
        expected.view(torch.int16)[1, 2] += self.fault
        return expected


@pytest.fixture
def kernels(monkeypatch):
    """The kernel "right" gives what the reference does, "wrong" an element whose exponent is another."""
    faults = {"right": 0, "wrong": 128}
    made = {name: type("Made", (Echo,), {"fault": fault})(name) for name, fault in faults.items()}
    monkeypatch.setattr(registry, "KERNELS", made)


def test_a_kernel_that_equals_the_reference_has_its_digest(kernels):
    assert outcome_of(SMALL, "right") == outcome_of(SMALL)


def test_a_wrong_element_is_a_problem_and_no_digest(kernels):
    found = outcome_of(SMALL, "wrong")
    assert found.digest is None
    assert "differs from the expected bits in 1 of 48 elements" in found.problem and "wrong" in found.problem


def test_a_real_valued_output_within_its_bound_has_a_digest_and_its_plan(kernels):
    expected = recording.reference_output(random_inputs(REAL), REAL, "w4a16")
    assert outcome_of(REAL, "right") == Outcome(recording.digest(expected), plan="kernel=right")


def test_a_real_valued_output_that_leaves_its_bound_is_a_problem_and_no_digest(kernels):
    found = outcome_of(REAL, "wrong")
    assert found.digest is None and "leaves its enclosure in 1 of 48 elements" in found.problem


def test_the_plan_of_our_kernels_has_their_tiles():
    found = recording.described(Task(REAL, "w4a16", "prefill_w4a16"), "cpu")
    assert found.startswith("kernel=prefill_w4a16 launches=8 BLOCK_M=16 BLOCK_N=64 ")


def test_inputs_that_depend_on_the_order_are_a_problem(monkeypatch):
    monkeypatch.setattr(layer, "draw", lambda case: random_inputs(replace(case, inputs="random")))
    assert "OrderDependent" in outcome_of(SMALL).problem


def test_an_output_of_zeros_is_a_problem(monkeypatch):
    inputs = layer.draw(SMALL)
    zeros = replace(inputs, hidden_states=torch.zeros_like(inputs.hidden_states))
    monkeypatch.setattr(layer, "draw", lambda case: zeros)
    assert "MISTRUSTED" in outcome_of(SMALL).problem


@pytest.mark.parametrize("name", ["TRITON_INTERPRET", "TRITON_FORCE_DISABLE_FP_FUSION"])
def test_a_gpu_is_refused_where_the_environment_would_run_other_code(monkeypatch, name):
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setenv(name, "1")
    with pytest.raises(Refused, match=f"{name} is set"):
        recording.start("gpu")


def test_a_torch_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Refused, match="needs a CUDA GPU"):
        recording.start("gpu")
