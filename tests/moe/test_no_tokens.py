"""No tokens at all, as an idle rank has them, and what a process does after it: the bytes of a process without that.

Seen in sgl-project/sglang#38773: a division by the number of tokens, and the null pointer of an empty tensor.
"""

import hashlib
import json
import subprocess
import sys
from dataclasses import astuple

import pytest
import torch

from nvfp4_suite.contract.banks import ExpertBanks
from nvfp4_suite.contract.case import Case, Inputs, random_inputs
from nvfp4_suite.kernels.registry import KERNELS
from nvfp4_suite.reference import judge

from ..starts import at_starts
from .edges import shape_of
from .gate_up import W4A16
from .subject import run_kernel

# What a process computes that never had an empty call: of {kernel: shape} it prints {kernel: SHA-256}.
FRESH = """
import json, sys
if sys.argv[1] == "cpu":
    import nvfp4_suite.ci.interpreter
import hashlib, torch
from nvfp4_suite.contract.case import Case, random_inputs
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.registry import KERNELS
digests = {}
for name, sizes in json.loads(sys.argv[2]).items():
    inputs, kernel = random_inputs(Case(LayerShape(*sizes), 1, inputs="random")).to(sys.argv[1]), KERNELS[name]
    rest = inputs.hidden_states, inputs.topk_weights, inputs.topk_ids
    out = kernel.run(kernel.prepare(inputs.banks), *rest).cpu()
    digests[name] = hashlib.sha256(out.view(torch.uint8).numpy()).hexdigest()
print(json.dumps(digests))
"""


@pytest.fixture(scope="module")
def fresh(device) -> dict[str, str]:
    shapes = json.dumps({kernel: astuple(shape_of("no tokens", kernel)) for kernel in W4A16})
    child = subprocess.run([sys.executable, "-c", FRESH, device, shapes], capture_output=True, text=True, timeout=300)
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


def _refuse(_start, launch, *_, **__):
    raise AssertionError(f"no tokens, but {launch.label} is started")


@pytest.mark.fault("sgl-project/sglang#38773")
@pytest.mark.parametrize("kernel", W4A16)
def test_one_token_after_none_has_the_bytes_of_a_fresh_process(kernel: str, fresh, device, monkeypatch):
    shape = shape_of("no tokens", kernel)
    with monkeypatch.context() as patch:
        at_starts(patch, _refuse)
        empty = run_kernel(KERNELS[kernel], random_inputs(Case(shape, 0, inputs="random")), device)
    assert empty.shape == (0, shape.hidden) and empty.dtype == torch.bfloat16
    if device == "cuda":
        torch.cuda.synchronize()  # would raise what the empty call left behind
    one = run_kernel(KERNELS[kernel], random_inputs(Case(shape, 1, inputs="random")), device)
    assert hashlib.sha256(one.view(torch.uint8).numpy()).hexdigest() == fresh[kernel]


@pytest.mark.fault("sgl-project/sglang#38773")
@pytest.mark.parametrize("kernel", W4A16)
def test_experts_without_a_token_are_none(kernel: str, device):
    """All routes to one of four experts give the bytes of a layer that has only this one."""
    inputs = random_inputs(Case(shape_of("no tokens", kernel), 2, inputs="random"))
    ids = torch.full((2, 2), 2, dtype=torch.int32)
    one_of_four = Inputs(inputs.hidden_states, inputs.banks, inputs.topk_weights, ids)
    alone = ExpertBanks(*(tensor[2:3].clone() for tensor in list(vars(inputs.banks).values())[:6]))
    only = Inputs(inputs.hidden_states, alone, inputs.topk_weights, torch.zeros_like(ids))
    judge.bitwise(*(run_kernel(KERNELS[kernel], one, device) for one in (one_of_four, only)), kernel=kernel)
