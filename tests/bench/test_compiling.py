"""What is compiled before a benchmark takes a time: each binary once, of what is asked for alone."""

from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import pytest

from nvfp4_suite.bench import compiling
from nvfp4_suite.bench.points import LAYERS
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.kernels import hopper
from nvfp4_suite.kernels.plan import plan_layer

PLANS = [
    plan_layer(Gpu("NVIDIA H200", (9, 0)), LAYERS[name].shape, tokens, kernel=kernel)
    for name in ("Qwen3.6-35B-A3B", "MiniMax-M2.5")
    for tokens in (1024, 32768)
    for kernel in hopper.NAMES
]


@pytest.fixture
def said(monkeypatch) -> list[str]:
    """Processes are threads, and compiling fails for a tile of 64 routes."""

    def compile_only(launch):
        if dict(launch.constexprs).get("BLOCK_M") == 64 and launch.stage == "down":
            raise RuntimeError("no such instruction\nbelow it, pages of IR")

    monkeypatch.setattr(compiling, "ProcessPoolExecutor", lambda workers, *_: ThreadPoolExecutor(workers))
    monkeypatch.setattr(compiling, "cores", lambda: 4)
    monkeypatch.setattr(compiling, "compile_only", compile_only)
    return []


def test_each_binary_is_there_once_and_the_largest_first():
    found = compiling.launches(PLANS, ["layer"])
    every = {(one.kernel, one.arguments, one.constexprs) for plan in PLANS for one in plan.launches}
    assert len(found) == len(every) < sum(len(plan.launches) for plan in PLANS)
    blocks = [one.constexpr("BLOCK_M") for one in found if one.stage in compiling.GEMMS]
    assert blocks == sorted(blocks, reverse=True) and set(blocks) == {64, 256}
    assert all(one.stage in compiling.GEMMS for one in found[: len(blocks)])


@pytest.mark.parametrize(
    ("stages", "left"), [(["gate_up"], {"gate_up"}), (["align", "down"], {"down"}), (["sum"], set())]
)
def test_gemms_that_nobody_asks_for_are_left_out(stages, left):
    assert {one.stage for one in compiling.launches(PLANS, stages)} & set(compiling.GEMMS) == left


def test_it_says_how_far_it_is_and_what_failed(said):
    each = compiling.launches(PLANS, ["layer"])
    compiling.compile_all(each, said.append)
    failed = [line for line in said if line.startswith("not compiled beforehand: down BLOCK_M=64")]
    assert failed and all(line.endswith("RuntimeError: no such instruction") for line in failed)
    progress = [line.split(" launches")[0] for line in said if line not in failed]
    assert progress == [f"[compiling, {number} of {len(each)}" for number in (10, len(each))] and 10 < len(each) < 20


def test_processes_that_die_are_said_once(said, monkeypatch):
    def died(launch):
        raise BrokenProcessPool("a process was killed")

    monkeypatch.setattr(compiling, "_compiled", died)
    compiling.compile_all(compiling.launches(PLANS, ["layer"]), said.append)
    assert said == ["the rest is compiled where it is launched: a process was killed"]


def test_one_core_compiles_where_it_launches(said, monkeypatch):
    monkeypatch.setattr(compiling, "cores", lambda: 1)
    compiling.compile_all(compiling.launches(PLANS, ["layer"]), said.append)
    assert not said


def test_few_are_compiled_where_they_are_launched(said):
    compiling.compile_all(compiling.launches(PLANS, ["sum"]), said.append)
    assert not said
