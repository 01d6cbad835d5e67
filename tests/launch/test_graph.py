"""A layer never waits for the host, so it can be captured in a CUDA graph and replayed on other data."""

import pytest
import torch

from nvfp4_suite.contract.case import Case, random_inputs
from nvfp4_suite.contract.kernel import Kernel
from nvfp4_suite.kernels.experts import fused_experts
from nvfp4_suite.kernels.registry import KERNELS
from nvfp4_suite.kernels.w4a4_layer import Scales
from nvfp4_suite.reference import judge

from ..moe.edges import EDGES, shape_of

ROUTINGS = ("hot", "dropped", "few", "twice")
every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())


def _case(kernel: Kernel, routing: str = "random") -> Case:
    shape, tokens = shape_of("captured", kernel.name), EDGES["captured"][1]
    return Case(shape, tokens, routing, inputs="random", format=kernel.promise.formats[0])


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
@every_kernel
def test_a_run_has_no_host_sync(kernel: Kernel, device):
    inputs = random_inputs(_case(kernel)).to(device)
    prepared = kernel.prepare(inputs.banks)
    kernel.run(prepared, inputs.hidden_states, inputs.topk_weights, inputs.topk_ids)  # compiled outside
    try:
        torch.cuda.set_sync_debug_mode("error")
        kernel.run(prepared, inputs.hidden_states, inputs.topk_weights, inputs.topk_ids)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@every_kernel
def test_a_replay_gives_the_bytes_of_an_eager_run(kernel: Kernel, device):
    inputs = random_inputs(_case(kernel)).to(device)
    prepared = kernel.prepare(inputs.banks)
    static = [inputs.hidden_states, inputs.topk_weights, inputs.topk_ids]
    kernel.run(prepared, *static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernel.run(prepared, *static)
    for case in (_case(kernel, routing) for routing in ROUTINGS):
        other = random_inputs(case).to(device)
        for mine, new in zip(static, (other.hidden_states, other.topk_weights, other.topk_ids), strict=True):
            mine.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        judge.bitwise(out, kernel.run(prepared, *static), case=case.id, kernel=kernel.name)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_scales_are_not_computed_inside_a_capture(device):
    """That would wait for the GPU. Those of an earlier call with the same banks are used, and so are given ones."""
    inputs = random_inputs(Case(*EDGES["captured"], inputs="random", format="w4a4")).to(device)
    arguments = inputs.hidden_states, inputs.banks, inputs.topk_weights, inputs.topk_ids
    expected = fused_experts(*arguments, kernel="w4a4", scales=Scales.of(inputs.banks))
    torch.cuda.synchronize()
    with pytest.raises(ValueError, match="computed before the graph capture"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        fused_experts(*arguments, kernel="w4a4")
    fused_experts(*arguments, kernel="w4a4")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fused_experts(*arguments, kernel="w4a4")
    graph.replay()
    torch.cuda.synchronize()
    judge.bitwise(out, expected)
