"""Digests byte for byte, what is due on an engine, and that nothing wrong becomes a digest."""

import hashlib
import os
from dataclasses import replace

import pytest
import torch

from nvfp4_suite.cases.layers import ORDERFREE
from nvfp4_suite.ci import recording
from nvfp4_suite.ci.exact import Outcome, Refused, key
from nvfp4_suite.contract.case import Case, random_inputs
from nvfp4_suite.contract.kernel import FORMATS, Promise
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import registry
from nvfp4_suite.kernels.registry import PlannedKernel
from nvfp4_suite.reference.draws import layer

SMALL = Case(LayerShape(2, 1, 16, 16), 3)


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


def fake_kernels(monkeypatch, **promises: Promise) -> None:
    kernels = {name: PlannedKernel(name, promise) for name, promise in promises.items()}
    monkeypatch.setattr(registry, "KERNELS", kernels)


def test_the_reference_owes_every_case_in_every_promised_form(monkeypatch):
    fake_kernels(monkeypatch, a=Promise(), b=Promise(), c=Promise(rounding="other"))
    big = replace(SMALL, tier="all")
    assert recording.due("reference", (SMALL, big)) == [(c, form) for c in (SMALL, big) for form in ("other", "w4a16")]


def test_a_case_that_no_kernel_takes_is_owed_by_the_reference_alone(monkeypatch):
    fake_kernels(monkeypatch, a=Promise())
    quantized = replace(SMALL, format="w4a4")
    assert recording.due("reference", (SMALL, quantized)) == [(SMALL, "w4a16"), (quantized, "w4a4")]
    for engine in ("interpreter", "sm_90"):
        assert recording.due(engine, (SMALL, quantized)) == [(SMALL, "w4a16")]


@pytest.mark.parametrize("name", FORMATS)
def test_a_kernel_of_a_format_is_held_to_the_cases_of_that_format(monkeypatch, name):
    fake_kernels(monkeypatch, a=Promise(formats=(name,), rounding=name))
    cases = tuple(replace(SMALL, format=one) for one in FORMATS)
    assert recording.due("sm_90", cases) == [(replace(SMALL, format=name), name)]
    assert recording.due("reference", cases) == [(case, case.format) for case in cases]


def test_a_kernel_that_adds_by_atomics_shares_the_digest_of_the_cases_whose_sums_are_exact(monkeypatch):
    fake_kernels(monkeypatch, a=Promise(), b=Promise(rounding="w4a16_atomic"))
    three = Case(LayerShape(4, 3, 48, 80), 5)
    exact = replace(three, atomics=True)
    assert recording.due("reference", (three, exact)) == [(three, "w4a16"), (exact, "w4a16")]
    assert [kernel.name for kernel in recording.kernels_for("sm_90", three, "w4a16")] == ["a"]
    assert [kernel.name for kernel in recording.kernels_for("sm_90", exact, "w4a16")] == ["a", "b"]


def test_the_interpreter_leaves_out_what_takes_minutes_and_a_gpu_does_not():
    big = replace(SMALL, tier="all")
    assert recording.due("interpreter", (SMALL, big)) == [(SMALL, "w4a16")]
    assert recording.due("sm_90", (SMALL, big)) == [(SMALL, "w4a16"), (big, "w4a16")]


@pytest.mark.parametrize(
    ("promise", "engines"),
    [
        (Promise(), {"interpreter", "sm_90", "sm_100"}),
        (Promise(capabilities=((9, 0),)), {"interpreter", "sm_90"}),
        (Promise(interpreted=False), {"sm_90", "sm_100"}),
        (Promise(dtypes=("fp16",)), set()),
        (Promise(activations=("gelu",)), set()),
    ],
)
def test_a_kernel_owes_what_it_promises(monkeypatch, promise, engines):
    fake_kernels(monkeypatch, a=promise)
    every = ("interpreter", "sm_90", "sm_100")
    assert {engine for engine in every if recording.due(engine, (SMALL,))} == engines


def test_a_form_is_owed_by_the_kernels_that_promise_it(monkeypatch):
    fake_kernels(monkeypatch, a=Promise(), b=Promise(rounding="other"))
    assert [kernel.name for kernel in recording.kernels_for("sm_90", SMALL, "other")] == ["b"]


def test_the_reference_gives_a_digest_of_its_output():
    expected = recording.reference_output(layer.draw(SMALL), SMALL, "w4a16")
    assert (expected.dtype, expected.shape) == (torch.bfloat16, (3, 16))
    assert recording.outcome("reference", SMALL, "w4a16") == Outcome(recording.digest(expected))


class Echo(PlannedKernel):
    """Gives the reference's output, with `fault` in one element."""

    fault = 0

    def run(self, *arguments, **options):
        expected = recording.reference_output(layer.draw(SMALL), SMALL, "w4a16")
        expected.view(torch.int16)[1, 2] += self.fault
        return expected


def test_a_kernel_that_equals_the_reference_has_its_digest(monkeypatch):
    monkeypatch.setattr(registry, "KERNELS", {"echo": Echo("echo")})
    assert recording.outcome("interpreter", SMALL, "w4a16") == recording.outcome("reference", SMALL, "w4a16")


def test_one_wrong_bit_of_one_kernel_is_a_problem_and_no_digest(monkeypatch):
    wrong = type("Wrong", (Echo,), {"fault": 1})("wrong")
    monkeypatch.setattr(registry, "KERNELS", {"echo": Echo("echo"), "wrong": wrong})
    found = recording.outcome("interpreter", SMALL, "w4a16")
    assert found.digest is None
    assert "differs from the expected bits in 1 of 48 elements" in found.problem and "wrong" in found.problem


def test_inputs_that_depend_on_the_order_are_a_problem(monkeypatch):
    monkeypatch.setattr(layer, "draw", lambda case: random_inputs(replace(case, inputs="random")))
    assert "OrderDependent" in recording.outcome("reference", SMALL, "w4a16").problem


def test_an_output_of_zeros_is_a_problem(monkeypatch):
    inputs = layer.draw(SMALL)
    zeros = replace(inputs, hidden_states=torch.zeros_like(inputs.hidden_states))
    monkeypatch.setattr(layer, "draw", lambda case: zeros)
    assert "MISTRUSTED" in recording.outcome("reference", SMALL, "w4a16").problem


def test_a_run_is_another_process_and_shows_its_progress(capfd):
    run = recording.run_in_fresh_process("reference", (SMALL,))
    assert run.engine == "reference" and run.provenance["torch"] == torch.__version__
    assert run.outcomes == {key(SMALL, "w4a16"): recording.outcome("reference", SMALL, "w4a16")}
    assert f"[1/1] {key(SMALL, 'w4a16')} ok" in capfd.readouterr().err


def surroundings(engine, cases) -> tuple[int, str, list[str]]:
    """Stands in for recording.run: its process, its Triton cache and what that holds."""
    cache = os.environ.get("TRITON_CACHE_DIR", "")
    return os.getpid(), cache, os.listdir(cache)


def test_every_run_has_a_process_and_an_empty_cache_of_its_own(monkeypatch):
    monkeypatch.setattr(recording, "run", surroundings)
    first, second = (recording.run_in_fresh_process("reference", ()) for _ in range(2))
    assert len({first[0], second[0], os.getpid()}) == 3
    assert first[1] != second[1] and first[2] == second[2] == []


def test_the_interpreter_gives_the_references_digest(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    interpreted = recording.run_in_fresh_process("interpreter", (SMALL,)).outcomes
    assert interpreted == {key(SMALL, "w4a16"): recording.outcome("reference", SMALL, "w4a16")}


@pytest.mark.parametrize("name", ["TRITON_INTERPRET", "TRITON_FORCE_DISABLE_FP_FUSION"])
def test_a_gpu_is_refused_where_the_environment_would_run_other_code(monkeypatch, name):
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setenv(name, "1")
    with pytest.raises(Refused, match=f"{name} is set"):
        recording.run_in_fresh_process("gpu", (SMALL,))


def test_a_host_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(Refused, match="needs a CUDA GPU"):
        recording.run_in_fresh_process("gpu", (SMALL,))


class Deadly:
    """Ends the process that unpickles it."""

    def __reduce__(self):
        return os._exit, (3,)


def test_a_process_that_dies_is_refused():
    with pytest.raises(Refused, match="the process of engine reference died"):
        recording.run_in_fresh_process("reference", (Deadly(),))


def test_every_order_free_case_has_its_own_key():
    keys = [key(case, form) for case, form in recording.due("reference", ORDERFREE)]
    assert len(set(keys)) == len(keys) >= 20
