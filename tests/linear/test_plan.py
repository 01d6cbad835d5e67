"""What the plan of a linear layer chooses."""

import pytest

from nvfp4_suite.contract.gpus import CATALOG, PORTABLE, Gpu
from nvfp4_suite.kernels.linear_plan import plan_linear

H200 = Gpu("NVIDIA H200", (9, 0))


@pytest.mark.parametrize(
    ("m", "n", "k", "stages"),
    [
        (0, 4096, 4096, []),
        (1, 4096, 4096, ["gemv"]),
        (4, 4096, 4096, ["gemv"]),
        (5, 4096, 4096, ["gemm", "sum_splits"]),
        (5, 4096, 1008, ["gemm"]),  # K is too short
        (5, 4096, 1024, ["gemm", "sum_splits"]),  # K is long enough
        (64, 12225, 4096, ["gemm"]),  # 192 tiles are enough
        (64, 12224, 4096, ["gemm", "sum_splits"]),
        (4096, 4096, 4096, ["gemm"]),
    ],
)
def test_few_rows_take_the_gemv_and_few_tiles_two_parts(m, n, k, stages):
    plan = plan_linear(H200, m, n, k)
    assert [launch.stage for launch in plan.launches] == stages
    assert plan.split_k == 1 + ("sum_splits" in stages)


@pytest.mark.parametrize(("m", "block_m"), [(1, 16), (16, 16), (17, 64), (4096, 64)])
@pytest.mark.parametrize("split_k", [1, 2])
def test_an_asked_split_is_a_gemm_of_so_many_parts(m, block_m, split_k):
    plan = plan_linear(H200, m, 4096, 4096, split_k=split_k)
    gemm = plan.launch("gemm")
    assert (plan.split_k, gemm.constexpr("PARTIAL")) == (split_k, split_k == 2)
    assert gemm.constexpr("BLOCK_M") == block_m
    assert (plan.launch("sum_splits") is not None) == (split_k == 2)


@pytest.mark.parametrize("gpu", [*CATALOG, PORTABLE, Gpu("from the future", (13, 0))], ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("m", [1, 64])
def test_scales_are_fp8_pointers_only_where_e4m3_is_native(gpu, m):
    kind = dict(plan_linear(gpu, m, 4096, 4096).launches[0].arguments)["scale"]
    assert kind == ("*fp8e4nv" if gpu.capability and (8, 9) <= gpu.capability < (13, 0) else "*u8")


@pytest.mark.parametrize("m", [1, 20, 64])
def test_sizes_are_never_constants(m):
    first, second = (plan_linear(H200, m, n, k, split_k=split) for n, k, split in [(4097, 2048, 2), (8192, 4096, 2)])
    assert first.launches == second.launches


def test_fusion_is_off_in_every_launch():
    launches = plan_linear(H200, 1, 64, 64).launches + plan_linear(H200, 5, 64, 64, split_k=2).launches
    assert len(launches) == 3 and not any(launch.fp_fusion for launch in launches)


def test_the_reason_says_what_decided():
    assert plan_linear(H200, 2, 4096, 4096).reason == "2 rows, NVIDIA H200: GEMV"
    assert plan_linear(H200, 100, 8192, 4096).reason == "100 rows, 256 tiles, NVIDIA H200: block 64, split_k 1"
