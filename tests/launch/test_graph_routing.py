"""A captured layer, replayed with other activations and routes in place: the bytes of an eager run each time."""

import pytest
import torch
from triton import knobs

from nvfp4_suite.contract.kernel import Kernel
from nvfp4_suite.reference import judge

from ..engine import kernels_here
from ..moe.rerouted import STEPS, static

every_kernel = pytest.mark.parametrize("kernel", kernels_here(), ids=lambda kernel: kernel.name)


def _captured(kernel: Kernel, prepared, arguments) -> tuple[torch.cuda.CUDAGraph, torch.Tensor, list]:
    """The graph of one run after one eager run, its output, and what Triton compiled during the capture."""
    kernel.run(prepared, *arguments)
    torch.cuda.synchronize()
    graph, compiled = torch.cuda.CUDAGraph(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knobs.compilation, "listener", lambda **facts: compiled.append(facts["src"].name))
        with torch.cuda.graph(graph):
            out = kernel.run(prepared, *arguments)
    return graph, out, compiled


@pytest.mark.fault("vllm-project/vllm#52383")
@every_kernel
def test_every_replay_gives_the_bytes_of_an_eager_run(kernel: Kernel, device):
    given = static(kernel, device)
    prepared = kernel.prepare(given.inputs.banks)
    graph, out, compiled = _captured(kernel, prepared, given.arguments)
    assert not compiled
    for step, what in enumerate(STEPS):
        given.change(step)
        graph.replay()
        torch.cuda.synchronize()
        expected = kernel.run(prepared, *given.arguments)
        judge.bitwise(out, expected, step=what, kernel=kernel.name, zeros_expected=True)
