"""The yardsticks' rates, from times that are known, and that a wrong one gives none."""

import pytest
import torch

from nvfp4_suite.bench.check import Wrong
from nvfp4_suite.bench.yardsticks import Yardsticks

from .fake_host import FakeTimer


def test_rates_are_flops_and_bytes_read_plus_written_a_second():
    timer = FakeTimer(lambda place, turn: [2.0, 0.5][place])
    rates = Yardsticks(size=64, copied=4096).measure(timer, "cpu")
    assert rates.matrix == pytest.approx(2 * 64**3 / 2e-3)
    assert rates.copy == pytest.approx(2 * 4096 / 0.5e-3)


def test_they_are_warmed_up_first():
    timer = FakeTimer(lambda place, turn: 9.0 if turn < 20 else 1.0)
    assert Yardsticks(size=64, copied=4096).measure(timer, "cpu").copy == pytest.approx(2 * 4096 / 1e-3)


def test_a_copy_that_copies_nothing_has_no_rate(monkeypatch):
    monkeypatch.setattr(torch, "bitwise_not", lambda source, out: out)
    with pytest.raises(Wrong, match="the yardstick's copy differs from its source"):
        Yardsticks(size=64, copied=4096).measure(FakeTimer(), "cpu")
