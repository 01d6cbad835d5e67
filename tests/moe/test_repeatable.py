"""A kernel that promises to be repeatable gives the same bytes each time, whatever runs beside it, in any process.

flashinfer-ai/flashinfer#5221: partial sums were rounded and added as they came, so one call had many outputs, even with
a top_k of 1. Slots of an expert's list may come in any order; the output may not show it.
"""

import json
import subprocess
import sys
from dataclasses import asdict

import pytest
import torch

from nvfp4_suite.ci.recording import digest
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.kernel import Kernel
from nvfp4_suite.kernels.plan import DECODE
from nvfp4_suite.reference import judge

from ..engine import INTERPRETED, kernels_here
from ..held import held
from .edges import EDGES, shape_of
from .permuted import shuffled_routes
from .repeated import distinct
from .subject import inputs_on

REPEATABLE = [kernel for kernel in kernels_here() if kernel.promise.repeatable]
LISTED = [kernel for kernel in REPEATABLE if kernel.name not in DECODE]  # decode has no lists: each route by itself
# Two addends commute, so that a sum by atomics shows from a top_k of 3 on.
TIMES, TOP_K, PROCESSES = (2, [3], 1) if INTERPRETED else (200, [1, 2, 4], 2)
every_kernel = pytest.mark.parametrize("kernel", REPEATABLE, ids=lambda kernel: kernel.name)


def _case(kernel: Kernel, top_k: int) -> Case:
    """Many tokens, whose K takes many steps; in the interpreter the least that has two routes a block."""
    edge = "repeated" if INTERPRETED else "repeated, many steps"
    shape = shape_of(edge, kernel.name, top_k=top_k)
    return Case(shape, EDGES[edge][1], inputs="random", format=kernel.promise.formats[0])


_inputs = held(maxsize=2)(inputs_on)  # most kernels have the same


def _run(kernel: Kernel, prepared, inputs) -> torch.Tensor:
    return kernel.run(prepared, inputs.hidden_states, inputs.topk_weights, inputs.topk_ids)


def test_outputs_are_told_apart_by_their_bits(device):
    """Of equal numbers, 0 and -0, there are two; of what equals nothing, a NaN, there is one."""
    numbers = [0.0, -0.0, torch.nan, 0.0, torch.nan]
    found = distinct([torch.tensor([1.0, last], dtype=torch.bfloat16, device=device) for last in numbers])
    assert [str(out[1].item()) for out in found] == ["0.0", "-0.0", "nan"]


@pytest.mark.fault("flashinfer-ai/flashinfer#5221")
@pytest.mark.parametrize("top_k", [1, 3])
@pytest.mark.parametrize("kernel", LISTED, ids=lambda kernel: kernel.name)
def test_the_order_in_an_experts_list_does_not_show(kernel: Kernel, top_k: int, device):
    inputs = _inputs(_case(kernel, top_k), device)
    prepared = kernel.prepare(inputs.banks)
    expected = _run(kernel, prepared, inputs)
    for seed in range(2 if INTERPRETED else 8):
        with shuffled_routes(f"order {seed}") as changed:
            judge.bitwise(_run(kernel, prepared, inputs), expected, kernel=kernel.name, order=seed)
        assert changed, "the order was that of before"


@pytest.mark.fault("flashinfer-ai/flashinfer#5221")
@pytest.mark.parametrize("top_k", TOP_K)
@every_kernel
def test_many_runs_beside_others_have_one_digest(kernel: Kernel, top_k: int, device):
    """On a GPU another stream keeps it busy, with work of other sizes each time, so that other SMs are free."""
    inputs = _inputs(_case(kernel, top_k), device)
    prepared = kernel.prepare(inputs.banks)
    stream = torch.cuda.Stream() if device == "cuda" else None
    outs = []
    for time in range(TIMES):
        if stream:
            _load(stream, 256 * (1 + time % 7))
        outs.append(_run(kernel, prepared, inputs))
    found = distinct(outs)
    assert len(found) == 1, f"{len(found)} different outputs of {TIMES} runs of one call"


def _load(stream: "torch.cuda.Stream", size: int) -> None:
    """Some more work for `stream`, beside that of the current one."""
    with torch.cuda.stream(stream):
        matrix = torch.ones(size, size, device="cuda", dtype=torch.bfloat16)
        for _ in range(4):
            matrix = matrix @ matrix


FRESH = """
import json, os, sys
from functools import lru_cache
given = json.loads(sys.argv[1])
os.environ.update({"TRITON_INTERPRET": "1"} if given["device"] == "cpu" else {})
from nvfp4_suite.ci.recording import digest
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.registry import KERNELS
from tests.moe.repeated import distinct
from tests.moe.subject import inputs_on
if given["device"] == "cpu":
    import nvfp4_suite.ci.interpreter
else:
    from tests import compile_once
    compile_once.start()
inputs_of = lru_cache(2)(inputs_on)
for name, told in given["cases"]:
    case = Case(LayerShape(**told.pop("shape")), **told)
    inputs, kernel = inputs_of(case, given["device"]), KERNELS[name]
    prepared = kernel.prepare(inputs.banks)
    call = (prepared, inputs.hidden_states, inputs.topk_weights, inputs.topk_ids)
    print(name, case.id, *map(digest, distinct([kernel.run(*call) for _ in range(given["times"])])))
"""


@pytest.mark.fault("flashinfer-ai/flashinfer#5221")
@pytest.mark.long
def test_fresh_processes_have_the_digests_of_this_one(device):
    """A digest for each kernel and top_k. All in one process, which takes longer to start; two beside one another."""
    cases = [(kernel, _case(kernel, top_k)) for top_k in TOP_K[:2] for kernel in REPEATABLE]
    told = [(kernel.name, asdict(case)) for kernel, case in cases]
    command = [sys.executable, "-c", FRESH, json.dumps({"cases": told, "device": device, "times": TIMES})]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, **pipes) for _ in range(PROCESSES)]
    mine = []
    for kernel, case in cases:
        inputs = _inputs(case, device)
        mine.append(f"{kernel.name} {case.id} {digest(_run(kernel, kernel.prepare(inputs.banks), inputs))}")
    for child in children:
        out, error = child.communicate(timeout=300)
        assert out.splitlines() == mine, error
