"""The linear layer where there is a GPU: compiled as declared, capturable, and beyond 2^31 elements."""

import pytest
import torch

from nvfp4_suite.contract import gpus
from nvfp4_suite.kernels import linear
from nvfp4_suite.kernels.linear_plan import plan_linear
from nvfp4_suite.reference import judge

from ..linear.layer import random
from .test_specialization import check_compiled_as_declared

# Sizes that tempt Triton to specialize (1, multiples of 16, and neither) for the GEMV and for either form of the GEMM.
FORMS = [(1, 1, 16, "auto"), (2, 96, 1024, "auto"), (1, 1, 16, 1), (16, 96, 64, 1), (65, 33, 272, 1), (16, 16, 512, 2)]


@pytest.mark.parametrize(("m", "n", "k", "split_k"), FORMS)
def test_every_launch_compiles_as_declared(m, n, k, split_k, device, monkeypatch):
    plan = plan_linear(gpus.current(0), m, n, k, split_k=split_k)
    check_compiled_as_declared(plan, linear, monkeypatch, *random(m, n, k, "bf16").on(device))


@pytest.mark.parametrize(("m", "n", "k", "split_k"), FORMS)
def test_a_replay_gives_the_bytes_of_an_eager_run(m, n, k, split_k, device):
    arguments, other = (random(m, n, k, dtype).on(device) for dtype in ("bf16", "fp16"))
    other = (other[0].to(torch.bfloat16), *other[1:])
    linear.nvfp4_linear(*arguments, split_k=split_k)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = linear.nvfp4_linear(*arguments, split_k=split_k)
    for mine, new in zip(arguments, other, strict=True):
        mine.copy_(new)
    graph.replay()
    torch.cuda.synchronize()
    judge.bitwise(out, linear.nvfp4_linear(*arguments, split_k=split_k))


# Bytes of GPU memory that one of the following tests holds at once, at most. The last needs nearly all: 8.6 GB are its
# workspace, 2.2 GB its output. What earlier tests hold would come on top, so it is let go of first.
MOST_MEMORY = 11e9


@pytest.mark.fault("sgl-project/sglang#4727")
@pytest.mark.usefixtures("whole_share")
@pytest.mark.parametrize(
    ("m", "n", "k", "split_k"),
    [
        (1, 2**17 + 64, 2**15, "auto"),  # packed weights
        (20, 2**17 + 64, 2**15, 1),
        (2**16 + 64, 2**15, 16, 1),  # the output
        (2**15 + 64, 2**15, 16, 2),  # the second part of the workspace
    ],
)
def test_beyond_2_31_the_last_rows_are_those_of_a_small_layer(m, n, k, split_k, device):
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    x = torch.randn(m, k, device=device).to(torch.bfloat16)
    packed = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=device)
    scale = torch.full((n, k // 16), 0x38, dtype=torch.uint8, device=device).view(torch.float8_e4m3fn)  # 1.0
    global_scale = torch.full((n,), 2.0**-9, device=device)
    out = linear.nvfp4_linear(x, packed, scale, global_scale, split_k=split_k)
    rows, columns = slice(max(m - 64, 0), m), slice(n - 64, n)
    last = (packed[columns].clone(), scale[columns].clone(), global_scale[columns])
    judge.bitwise(out[rows, columns], linear.nvfp4_linear(x[rows], *last, split_k=split_k))
    assert torch.cuda.max_memory_allocated() - before < MOST_MEMORY
