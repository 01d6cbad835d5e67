"""Rows as a table: aligned, short, and with the means that a reader looks for."""

import pytest

from nvfp4_suite.bench.table import means, table

from .fake_host import cells

ROW = {"shape": "GLM-4.7", "tokens": 8192, "stage": "layer", "kernel": "w4a4", "milliseconds": 3.341, "tflops": 926.1}
COMPARED = {"baseline": "prefill", "ratio": 0.25, "ratio_low": 0.24, "ratio_high": 0.26, "verdict": "faster"}


def test_a_line_has_what_was_measured():
    row = ROW | COMPARED | {"roofline": 0.71, "bound": "matrix", "mfu": 0.494, "over_grouped": 2.054, "error": 0.0038}
    head, line = table([row])
    assert dict(zip(cells(head), cells(line), strict=True)) == {
        "shape": "GLM-4.7",
        "T": "8192",
        "stage": "layer",
        "kernel": "w4a4",
        "ms": "3.341",
        "TFLOP/s": "926",
        "roofline": "71% matrix",
        "MFU": "49%",
        "x grouped": "2.05",
        "against baseline": "0.250 [0.240, 0.260] faster",
        "error": "3.8e-03",
    }


def test_columns_are_aligned_and_empty_ones_left_out():
    lines = table([ROW, ROW | {"kernel": "prefill_w4a16", "tokens": 1, "tflops": None, "replayed": False}])
    assert cells(lines[0]) == ["shape", "T", "stage", "kernel", "ms", "TFLOP/s"]
    assert len({line.find("3.341") for line in lines[1:]}) == 1
    assert [line.index("layer") for line in lines[1:]] == [lines[0].index("stage")] * 2
    assert "prefill_w4a16 (eager)" in lines[2]


def test_means_are_geometric_by_tokens_and_over_all():
    slow, fast = ROW | COMPARED, ROW | COMPARED | {"ratio": 0.5, "shape": "GLM-5.2"}
    more = [row | {"tokens": 16384, "ratio": 1.0} for row in (slow, fast)]
    found = means([slow, fast, *more])
    assert found == [
        "layer w4a4, T = 8192: 2.828x as fast as prefill over 2 points",
        "layer w4a4, T = 16384: 1.000x as fast as prefill over 2 points",
        "layer w4a4, all T: 1.682x as fast as prefill over 4 points",
    ]


def test_a_mean_over_grouped_has_its_least():
    rows = [
        ROW | {"stage": "gate_up", "over_grouped": value, "shape": name} for value, name in ((1.0, "a"), (4.0, "b"))
    ]
    assert means(rows) == ["gate_up w4a4, T = 8192: 2.000x as fast as grouped_mm over 2 points, 1.000x at least"]


@pytest.mark.parametrize("rows", [[], [ROW | COMPARED], [ROW, ROW | COMPARED]])
def test_no_mean_of_one_or_of_what_only_some_have(rows):
    assert means(rows) == []
