"""The NVFP4 linear layer: bit for bit where sums are exact in any order, else within what fp32 sums may lose."""

import pytest
import torch

from nvfp4_suite.contract.gpus import CATALOG, PORTABLE, Gpu
from nvfp4_suite.kernels import linear
from nvfp4_suite.kernels.linear_plan import LinearPlan, plan_linear
from nvfp4_suite.reference import formats, judge

from ..engine import can_run_here, on_gpu
from ..poison import poisoned_allocations
from .layer import Layer, order_free, random, run_plan

# K on either side of a step of the GEMM (64, ragged 32) and of the GEMV (256, wide 1024), within the first step and
# within the last; N on either side of a block of 16 and of 64; one and two rows for the GEMV, blocks of 16 and of 64.
SIZES = [
    (1, 1, 16, "bf16"),
    (2, 17, 48, "fp16"),
    (1, 65, 80, "fp16"),
    (2, 64, 256, "bf16"),
    (1, 63, 272, "fp16"),
    (1, 33, 1024, "bf16"),
    (2, 18, 1664, "fp16"),
    (1, 5, 528, "bf16"),
    (3, 1, 16, "fp16"),
    (16, 65, 32, "bf16"),
    (17, 64, 64, "fp16"),
    (5, 127, 80, "bf16"),
    (33, 30, 112, "bf16"),
    (65, 17, 144, "fp16"),
    (4, 20, 1056, "bf16"),
]
SIZES += on_gpu(
    [
        (m, n, k, dtype)
        for m in (1, 2, 31, 128, 1000)
        for n in (96, 4097)
        for k in (512, 2064, 4096)
        for dtype in ("bf16", "fp16")
    ]
)

FORMS = ["auto", 1, 2]
# In the interpreter the native e4m3 is left to test_every_finite_scale, for the sake of time.
CARDS = [PORTABLE, *on_gpu([gpu for gpu in CATALOG if can_run_here(gpu)])]


def _plans(m: int, n: int, k: int, dtype: str) -> list[LinearPlan]:
    """What cards may run for these sizes, as chosen and with either split; equal launches once."""
    plans = [plan_linear(gpu, m, n, k, dtype=dtype, split_k=split_k) for gpu in CARDS for split_k in FORMS]
    return list({plan.launches: plan for plan in plans}.values())


@pytest.mark.parametrize(("m", "n", "k", "dtype"), SIZES)
def test_every_plan_gives_the_one_right_answer(m, n, k, dtype, device):
    layer = order_free(m, n, k, dtype)
    expected, operands = layer.exact(), layer.operands()
    for plan in _plans(m, n, k, dtype):
        judge.bitwise(run_plan(plan, layer, device), expected, operands=operands, plan=plan.reason)


@pytest.mark.parametrize("split_k", FORMS)
@pytest.mark.parametrize(
    ("m", "n", "k", "dtype"), [(1, 40, 1024, "bf16"), (2, 70, 272, "fp16"), (18, 40, 272, "bf16"), (40, 17, 96, "fp16")]
)
def test_random_sums_are_as_exact_as_fp32_sums(m, n, k, dtype, split_k, device):
    layer = random(m, n, k, dtype)
    with poisoned_allocations():
        out = linear.nvfp4_linear(*layer.on(device), split_k=split_k).cpu()
    judge.bounded(out, layer.enclosure(), operands=layer.operands(), split_k=split_k)


@pytest.mark.parametrize("split_k", FORMS)
@pytest.mark.parametrize("gpu", [PORTABLE, Gpu("NVIDIA H200", (9, 0))], ids=lambda gpu: gpu.name)
def test_every_finite_scale(gpu, split_k, device):
    """254 rows of K = 16, one for each scale byte; x picks out codes 1.5 and -4 exactly."""
    scale = torch.tensor([byte for byte in range(256) if byte & 0x7F != 0x7F], dtype=torch.uint8)[:, None]
    packed = torch.full((254, 8), 0x3E, dtype=torch.uint8)  # -4 at even k, 1.5 at odd k
    x = torch.eye(16, dtype=torch.float16)[:2]
    layer = Layer(x, packed, scale.view(torch.float8_e4m3fn), torch.ones(254))
    plan = plan_linear(gpu if can_run_here(gpu) else PORTABLE, 2, 254, 16, dtype="fp16", split_k=split_k)
    out = run_plan(plan, layer, device)
    expected = formats.decode_e4m3(scale[:, 0]) * torch.tensor([[-4.0], [1.5]]) + 0.0  # sums start at +0
    judge.bitwise(out, expected.half())


def test_a_row_of_the_gemv_has_the_same_bytes_alone(device):
    layer = random(2, 70, 1664, "bf16")
    x, *weights = layer.on(device)
    both = linear.nvfp4_linear(x, *weights)
    for row in (0, 1):
        judge.bitwise(linear.nvfp4_linear(x[row : row + 1], *weights), both[row : row + 1], row=row)


@pytest.mark.parametrize("split_k", FORMS)
def test_repeats_itself(split_k, device):
    arguments = random(40, 40, 272, "bf16").on(device)
    first, second = (linear.nvfp4_linear(*arguments, split_k=split_k) for _ in range(2))
    judge.bitwise(second, first)


def test_one_global_for_all_rows_is_that_global_in_each(device):
    x, packed, scale, _ = random(3, 40, 48, "bf16").on(device)
    one = torch.tensor(0.37, device=device)
    judge.bitwise(linear.nvfp4_linear(x, packed, scale, one), linear.nvfp4_linear(x, packed, scale, one.repeat(40)))


@pytest.mark.parametrize("m", [1, 20])
def test_strided_and_misaligned_rows_give_the_bytes_of_their_copy(m, device):
    x, *weights = random(m, 40, 48, "bf16").on(device)
    wide = torch.full((2 * m, 64), torch.nan, dtype=x.dtype, device=device)
    wide[::2, 3:51] = x
    judge.bitwise(linear.nvfp4_linear(wide[::2, 3:51], *weights), linear.nvfp4_linear(x, *weights))


def test_a_nan_stays_in_its_row(device):
    layer = random(3, 40, 48, "bf16")
    x, *weights = layer.on(device)
    dirty = x.clone()
    dirty[1, 7] = torch.nan
    out, clean = (linear.nvfp4_linear(rows, *weights) for rows in (dirty, x))
    assert out[1].isnan().all()
    judge.bitwise(out[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("split_k", FORMS)
def test_fp16_overflows_only_where_the_result_does(split_k, device):
    """x 8, codes 6, scale 448: the sum of 344,064 is beyond fp16; a global of 2^-13 makes it 42, one of 1 leaves it."""
    packed, scale = torch.full((2, 8), 0x77, dtype=torch.uint8), torch.full((2, 1), 448.0).to(torch.float8_e4m3fn)
    layer = Layer(torch.full((2, 16), 8.0).half(), packed, scale, torch.tensor([2.0**-13, 1.0]))
    out = linear.nvfp4_linear(*layer.on(device), split_k=split_k).cpu()
    assert out.tolist() == [[42.0, torch.inf]] * 2


@pytest.mark.parametrize("split_k", FORMS)
def test_no_rows_give_an_empty_result(split_k, device):
    x, *weights = random(3, 40, 48, "fp16").on(device)
    out = linear.nvfp4_linear(x[:0], *weights, split_k=split_k)
    assert out.shape == (0, 40) and out.dtype == torch.float16
