"""The tightness table: its figures on a small layer, and what makes it refuse."""

from dataclasses import replace

import pytest
import torch

from nvfp4_suite.ci import tightness
from nvfp4_suite.contract.case import Case, random_inputs
from nvfp4_suite.contract.kernel import Promise
from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape
from nvfp4_suite.reference.moe import expert_layer

CASE = Case(LayerShape(4, 2, 256, 96), 6, inputs="random")


class Scaled:
    """The reference's output, off by a factor."""

    name, promise = "scaled", Promise()

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def prepare(self, banks):
        return banks

    def run(self, banks, hidden_states, topk_weights, topk_ids, **options):
        out = expert_layer(hidden_states, banks, topk_weights, topk_ids, rounding="w4a16", **options)
        return (out * self.factor).to(hidden_states.dtype)


def test_a_right_kernel_has_its_figures():
    row = tightness.measure(Scaled(1.0), CASE, "cpu")
    assert row.median == row.largest == 0  # it is the expected output
    assert 0 < row.width < 0.02
    assert 0 < row.sees_whole <= 1 and 0 < row.sees_expert <= 2


def test_a_wrong_kernel_has_none():
    with pytest.raises(AssertionError, match=r"kernel +scaled"):
        tightness.measure(Scaled(1.01), CASE, "cpu")


def test_the_smallest_seen_is_the_first_that_fails():
    interval = tightness.enclosed(random_inputs(CASE), CASE, "w4a16")
    expected = interval.expected
    step = tightness.smallest_seen(lambda percent: expected * (1 + 100 * (percent > 1.7)), interval)
    assert step == 1.75
    assert tightness.smallest_seen(lambda percent: expected, interval) is None


def test_the_families_are_the_published_sizes_in_both_dtypes():
    cases = tightness.families()
    assert len(cases) == 2 * len(CHECKPOINTS)
    sizes = {(case.shape.hidden, case.shape.intermediate) for case in cases.values()}
    assert sizes == {(shape.hidden, shape.intermediate) for shape in CHECKPOINTS.values()}
    assert replace(cases["GLM-4.7 bf16"], dtype="fp16") == cases["GLM-4.7 fp16"]


def test_a_host_without_a_gpu_is_told(monkeypatch):
    monkeypatch.setattr("sys.argv", ["tightness"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match=r"tightness needs a CUDA GPU, but torch .* sees none on this host"):
        tightness.main()
