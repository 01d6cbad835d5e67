"""What is compiled before a benchmark takes a time: each binary once, of what is asked for alone."""

from dataclasses import replace
from time import sleep

import pytest

from nvfp4_suite.bench import compiling, run, self_test, sweep_run
from nvfp4_suite.bench.__main__ import main
from nvfp4_suite.bench.points import LAYERS
from nvfp4_suite.bench.revisions import TODAY
from nvfp4_suite.bench.subjects import Subject
from nvfp4_suite.ci import gate_run
from nvfp4_suite.ci.gate_facts import GateError
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.kernels import hopper
from nvfp4_suite.kernels.plan import plan_layer

from .fake_host import host

H200 = Gpu("NVIDIA H200", (9, 0))
PLANS = [
    plan_layer(H200, LAYERS[name].shape, tokens, kernel=kernel)
    for name in ("Qwen3.6-35B-A3B", "MiniMax-M2.5")
    for tokens in (1024, 32768)
    for kernel in hopper.NAMES
]


class Here:
    """Stands in for a child process."""

    def call(self, where, function, *arguments):
        return function(*arguments)

    def close(self):
        pass


@pytest.fixture
def said(monkeypatch) -> list[str]:
    """Children are this process, and compiling fails for a tile of 64 routes."""

    def compile_only(launch):
        if dict(launch.constexprs).get("BLOCK_M") == 64 and launch.stage == "down":
            raise RuntimeError("no such instruction\nbelow it, pages of IR")

    monkeypatch.setattr(gate_run, "Child", Here)
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


def test_a_process_that_dies_costs_its_own_launch(said, monkeypatch):
    each = compiling.launches(PLANS, ["layer"])

    def call(self, where, function, launch):
        if launch is each[0]:
            raise GateError(f"{where}: the compiler ended its process, but should compile")

    monkeypatch.setattr(Here, "call", call)
    compiling.compile_all(each, said.append)
    (why,) = [line for line in said if not line.startswith("[compiling, ")]
    assert why.startswith("not compiled beforehand: ") and why.endswith("ended its process, but should compile")


def test_an_interrupt_leaves_out_what_has_not_begun(said, monkeypatch):
    begun = []

    def call(self, where, function, launch):
        begun.append(launch)
        sleep(0.01)

    def interrupted(line):
        raise KeyboardInterrupt

    monkeypatch.setattr(Here, "call", call)
    each = compiling.launches(PLANS, ["layer"]) * 20
    with pytest.raises(KeyboardInterrupt):
        compiling.compile_all(each, interrupted)
    assert 10 <= len(begun) < len(each) / 2


def test_one_core_compiles_where_it_launches(said, monkeypatch):
    monkeypatch.setattr(compiling, "cores", lambda: 1)
    compiling.compile_all(compiling.launches(PLANS, ["layer"]), said.append)
    assert not said


def test_few_are_compiled_where_they_are_launched(said):
    compiling.compile_all(compiling.launches(PLANS[:2], ["layer"]), said.append)
    assert not said


class Begins(Exception):
    """With the request."""


KINDS = [(run, []), (self_test, ["--self-test"]), (sweep_run, ["--sweep", "--stage", "gate_up", "--tiles", "m=16"])]


@pytest.mark.parametrize(("module", "arguments"), KINDS, ids=["run", "self-test", "sweep"])
def test_every_kind_of_benchmark_compiles_first(module, arguments, monkeypatch):
    def begins(request, host):
        raise Begins(request)

    monkeypatch.setattr(module, "compile_beforehand", begins)
    with pytest.raises(Begins) as found:
        main(["--shape", "4x2x64x32", "--tokens", "5", "--kernel", "prefill", *arguments], host())
    (request,) = found.value.args
    assert (len(request.subjects) > 1) == (module is sweep_run)  # all of its tiles


@pytest.mark.parametrize(("device", "times"), [("cuda", 1), ("cpu", 0)])
def test_todays_kernels_are_compiled_for_a_gpu(device, times, monkeypatch):
    """Those of another revision are compiled where they are launched: its Launch may be another."""
    calls = []
    monkeypatch.setattr(compiling, "compile_all", lambda each, say: calls.append(each))
    subjects = [Subject("prefill"), Subject("decode", kernels=replace(TODAY))]
    layer = LAYERS["Qwen3.6-35B-A3B"]
    request = run.Request([layer], [1, 4096], ["layer"], subjects[:1], subjects[1])
    run.compile_beforehand(request, replace(host(), device=device, gpu=H200))
    plans = [plan_layer(H200, layer.shape, tokens, kernel="prefill") for tokens in (1, 4096)]
    assert calls == [compiling.launches(plans, ["layer"])] * times
