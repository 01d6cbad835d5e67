"""Failures on disk: what a bundle holds, and that replaying one finds the fault again where it is, and only there."""

import json
from dataclasses import replace

import pytest
import torch

from nvfp4_suite.ci import bundle, host, replay
from nvfp4_suite.ci.bundle import Bundle
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import experts
from nvfp4_suite.kernels.variants import DEFAULT

from ..moe.subject import inputs_of

ORDERFREE = Case(LayerShape(2, 1, 16, 16), 3)
RANDOM = Case(LayerShape(4, 2, 48, 80), 5, inputs="random")
TEST = "tests/moe/test_orderfree.py::test_kernel_equals_the_reference[orderfree/e2]"


@pytest.fixture
def written(tmp_path):
    """Writes a bundle of a case and gives its folder."""

    def write(case: Case, kernel: str | None = DEFAULT, **changes):
        inputs = bundle.small_inputs(case)
        one = Bundle(TEST, case, kernel, "the output differs in 3 of 48", {"torch": "1.0"}, inputs)
        return bundle.write(tmp_path, replace(one, **changes), {"gate_up": "// code"})

    return write


def _tensors(inputs) -> list[torch.Tensor]:
    return [t for t in (inputs.hidden_states, inputs.topk_weights, inputs.topk_ids, *vars(inputs.banks).values())]


@pytest.mark.parametrize("case", [ORDERFREE, RANDOM, replace(RANDOM, format="w4a4", dtype="fp16")], ids=lambda c: c.id)
def test_a_bundle_is_read_as_it_was_written(case, written):
    folder = written(case)
    found = bundle.read(folder)
    assert (found.case, found.kernel, found.test) == (case, DEFAULT, TEST)
    for mine, other in zip(_tensors(inputs_of(case)), _tensors(found.inputs), strict=True):
        if mine is None or other is None:
            assert mine is other
        else:
            assert mine.dtype == other.dtype
            assert torch.equal(mine.view(torch.uint8), other.view(torch.uint8))
    assert (folder / "ptx" / "gate_up.ptx").read_text() == "// code"
    assert found.wrong is None
    cells = {"shape": [1, 2], "cell": [1, 1], "wrong": [[0, 1]]}
    assert bundle.read(written(case, wrong=cells)).wrong == cells


def test_a_bundle_names_its_commands(written):
    told = json.loads((written(RANDOM) / "bundle.json").read_text())
    assert told["id"] == RANDOM.id and told["failure"] == "the output differs in 3 of 48"
    assert f"nox -s gpu-tests -- --case {RANDOM.id}" in told["repro"]


def test_the_inputs_of_a_real_layer_are_not_kept():
    assert bundle.small_inputs(Case(LayerShape(256, 8, 2048, 512), 4, inputs="random")) is None


def test_what_is_no_bundle_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"is no bundle: it has no bundle\.json"):
        bundle.read(tmp_path)
    (tmp_path / "bundle.json").write_text('{"format": 99}')
    with pytest.raises(ValueError, match="another format than 1"):
        bundle.read(tmp_path)


@pytest.mark.parametrize("case", [ORDERFREE, RANDOM], ids=lambda case: case.id)
def test_a_replay_finds_the_fault_where_it_is(case, written, capsys, monkeypatch):
    folder = written(case)
    assert replay.replay(folder, "interpreter") == 0
    said = capsys.readouterr().out
    assert f"{DEFAULT}: right here" in said and "the output differs in 3 of 48" in said
    assert f'environment: torch: "1.0" then, "{host.report([])["torch"]}" now' in said
    run = experts.run
    monkeypatch.setattr(experts, "run", lambda *arguments, **options: run(*arguments, **options) * 1.0625)
    assert replay.replay(folder, "interpreter") == 1
    assert f"{DEFAULT}: AssertionError: the output" in capsys.readouterr().out


def test_a_replay_takes_the_inputs_that_failed(written, capsys):
    """Not those that the case is drawn as today: here they hold a NaN, which no draw has."""
    inputs = inputs_of(RANDOM).to("cpu")
    inputs.hidden_states[:] = torch.nan
    try:
        folder = written(RANDOM, inputs=inputs)
        assert replay.replay(folder, "interpreter") == 1
        assert "not finite" in capsys.readouterr().out
    finally:
        inputs_of.cache_clear()


def test_a_replay_of_an_unknown_kernel_is_refused(written):
    with pytest.raises(ValueError, match="'marlin' is not registered here, but"):
        replay.replay(written(ORDERFREE, "marlin"), "interpreter")


def test_the_environment_is_written_and_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_LIBDEVICE_PATH", "x")
    facts = host.report([])
    assert json.loads(host.write(tmp_path / "new", facts).read_text()) == facts
    assert facts["variables"]["TRITON_LIBDEVICE_PATH"] == "x"
    line = host.line(facts)
    assert f"torch {torch.__version__}" in line and f"sources {facts['sources'][:12]}" in line and "\n" not in line


def test_the_environment_names_driver_assembler_and_gpus(host_of_two):
    facts = host.report(host_of_two)
    assert facts["driver"] == "580.0" and facts["assembler"].startswith("ptxas ")
    assert [gpu["uuid"] for gpu in facts["gpus"]] == ["GPU-0000-5a5a", "GPU-1111-5a5a"]
    assert "driver 580.0, 2 x NVIDIA H200" in host.line(facts)
