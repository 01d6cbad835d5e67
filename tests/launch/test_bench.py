"""The benchmark on this GPU, on tiny layers: captured, replayed, judged and written. No time is asserted."""

import json
from dataclasses import replace

import pytest
import torch

from nvfp4_suite.bench import compiling, host
from nvfp4_suite.bench.__main__ import main
from nvfp4_suite.bench.yardsticks import Yardsticks
from nvfp4_suite.ci import gpus
from nvfp4_suite.ci.environment import CHOOSES_GPUS
from nvfp4_suite.ci.report import bench
from nvfp4_suite.contract.gpus import current
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.plan import plan_layer

from ..held import release


@pytest.fixture
def here(device, monkeypatch):
    """This GPU, which the session has leased, with yardsticks that take a moment."""
    (visible, *_) = gpus.mine()
    monkeypatch.setenv(CHOOSES_GPUS, visible.spelling)
    return replace(host.on(visible, lease="the session's"), yardsticks=Yardsticks(size=512, copied=2**20))


@pytest.mark.parametrize("stage", ["layer", "gate_up", "activation", "down", "sum"])
def test_layers_and_stages_are_timed_from_graphs(here, tmp_path, stage):
    arguments = ["--shape", "8x2x128x64", "--tokens", "5,40", "--kernel", "prefill", "--against", "decode"]
    assert main([*arguments, "--stage", stage, "--budget", "0.01", "--artifacts", str(tmp_path)], here) == 0
    assert bench.read(tmp_path / "bench.jsonl")[1] == []
    rows = map(json.loads, (tmp_path / "bench.jsonl").read_text().splitlines())
    kernels = [row for row in rows if row["kernel"] in ("prefill", "decode")]
    assert len(kernels) == 4 and all(row["replayed"] and row["digest"] for row in kernels)


def test_the_routing_is_timed_too(here):
    arguments = ["--shape", "8x2x128x64", "--tokens", "40", "--kernel", "prefill", "--stage", "align"]
    assert main([*arguments, "--budget", "0.01"], here) == 0


def test_w4a4_is_compared_with_w4a16(here, tmp_path):
    arguments = ["--shape", "8x2x128x64", "--tokens", "40", "--kernel", "w4a4", "--against", "prefill"]
    assert main([*arguments, "--budget", "0.01", "--artifacts", str(tmp_path)], here) == 0
    mine, theirs, *_ = bench.read(tmp_path / "bench.jsonl")[0]
    assert mine.ratio and mine.digest != theirs.digest


def test_a_graph_overwrites_what_it_wrote(here):
    x = torch.arange(64, device="cuda", dtype=torch.bfloat16)
    replay = here.timer.capture(lambda: x * 2)
    assert replay.graph is not None and torch.equal(replay.again(), x * 2)
    before = replay.out.data_ptr()
    x.add_(1)
    assert torch.equal(replay.again(), x * 2) and replay.out.data_ptr() == before


def test_what_waits_for_the_host_is_run_without_a_graph(here):
    x = torch.arange(64, device="cuda", dtype=torch.bfloat16)
    replay = here.timer.capture(lambda: x * x.max().item())
    assert replay.graph is None and torch.equal(replay.again(), x * 63)
    release()
    held = torch.cuda.memory_reserved()
    torch.empty(2**30, dtype=torch.uint8, device="cuda")  # and freed at once
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= held, "a failed capture keeps all that is freed"
    after = here.timer.capture(lambda: x + 1)  # and the next is captured as ever
    assert after.graph is not None and torch.equal(after.again(), x + 1)


def test_a_delay_is_captured_behind_what_it_delays(here):
    x = torch.arange(64, device="cuda", dtype=torch.bfloat16)
    replay = here.timer.capture(here.timer.delayed(lambda: x * 2, 0.05))
    assert replay.graph is not None and torch.equal(replay.again(), x * 2)
    assert len(here.timer.times([replay], [0] * 100)) == 100
    assert len(here.timer.forget()) >= 3 and here.timer.readings == []


def test_launches_are_compiled_in_processes(device, monkeypatch):
    monkeypatch.setattr(compiling, "LEAST", 1)
    plan = plan_layer(current(0), LayerShape(8, 2, 128, 64), 40, kernel="prefill")
    monkeypatch.setattr(compiling, "cores", lambda: 2)
    each, said = compiling.launches([plan], ["layer"])[:2], []
    compiling.compile_all(each, said.append)
    assert len(said) == 1 and said[0].startswith("[compiling, 2 of 2 launches done, ")
