"""A stage that is called on its own refuses what its launch was not compiled for, before anything is launched."""

from collections.abc import Callable

import pytest
import torch

from nvfp4_suite.contract.gpus import PORTABLE
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import experts, w4a4_layer
from nvfp4_suite.kernels.plan import plan_layer

SHAPE = LayerShape(2, 2, 64, 32)
IDS, WEIGHTS = torch.zeros(3, 2, dtype=torch.int32), torch.ones(3, 2)
STRIDED = IDS.T.contiguous().T
KERNELS = ("decode", "prefill", "prefill_w4a16_words", "prefill_w4a16_pair", "prefill_w4a16_table")
W4A4 = plan_layer(PORTABLE, SHAPE, 3, kernel="w4a4", input_scales=True)


def refused(error: type[Exception], message: str, stage: Callable, *arguments, **named) -> None:
    """Also nothing was launched: `start` is not reached."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (experts, w4a4_layer):
            patch.setattr(module, "start", lambda launch, *_, **__: pytest.fail(f"{launch.stage} was started"))
        with pytest.raises(error, match=message):
            stage(*arguments, **named)


def bank(rows: int, k: int) -> tuple[torch.Tensor, ...]:
    scale = torch.ones(2, rows, k // 16).to(torch.float8_e4m3fn)
    return torch.zeros(2, rows, k // 2, dtype=torch.uint8), scale, torch.ones(2, rows)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("rows", "k", "message"), [(64, 48, "K is 48, .* multiple of"), (40, 64, "N is 40, .* of 16")])
def test_a_gemm(kernel: str, rows: int, k: int, message: str):
    """A K of half a unit loses its second half; rows that are declared 16 apart, and are not, are stored elsewhere."""
    launch = plan_layer(PORTABLE, SHAPE, 3, kernel=kernel).launch("gate_up")
    x = torch.zeros(3, k, dtype=torch.bfloat16)
    routed = {"topk_ids": IDS, "topk_weights": WEIGHTS}
    refused(ValueError, f"{message}.* in gate_up", experts.gemm, launch, x, *bank(rows, k), 6, routed)


@pytest.mark.parametrize(("rows", "k", "message"), [(64, 48, "K is 48, .* of 32"), (40, 64, "N is [24]0, .* of 16")])
@pytest.mark.parametrize("stage", ["gate_up", "down"])
def test_a_gemm_of_w4a4(stage: str, rows: int, k: int, message: str):
    x = torch.zeros(6, k // 2, dtype=torch.uint8), torch.zeros(6, k // 16, dtype=torch.uint8)
    routed = 1, {"routes": 6, "topk_weights": WEIGHTS}
    out = torch.empty(6, rows, dtype=torch.bfloat16)
    rest = (torch.ones(1), routed) if stage == "gate_up" else (routed, out)
    refused(ValueError, message, getattr(w4a4_layer, stage), W4A4.launch(stage), x, bank(rows, k), *rest)


@pytest.mark.parametrize("stage", ["weigh_input", "activation", "sum_routes"])
def test_columns(stage: str):
    launch = plan_layer(PORTABLE, SHAPE, 3, weight_on_input=True).launch(stage)
    refused(ValueError, f"columns is 40, .* of 16 in {stage}", experts.by_columns, launch, out=torch.empty(6, 40))


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        (IDS.long(), TypeError, "topk_ids is torch.int64, but should be torch.int32"),
        (None, TypeError, "topk_ids is NoneType, but should be torch.int32"),
        (STRIDED, ValueError, r"topk_ids has strides \[1, 3\], but should be contiguous"),
    ],
    ids=["int64", "None", "strided"],
)
@pytest.mark.parametrize("kernel", ["decode", "prefill"])
def test_ids(kernel: str, ids: torch.Tensor | None, error: type[Exception], message: str):
    plan = plan_layer(PORTABLE, SHAPE, 3, kernel=kernel)
    refused(error, message, experts.routed_by, plan, WEIGHTS, ids)
    if kernel == "prefill":
        refused(error, message, experts.route_blocks, plan, ids)
    for stage in ("activation", "sum_routes"):
        out = torch.empty(6, 64)
        refused(error, message, experts.by_columns, plan.launch(stage), out=out, topk_ids=ids, experts=2)
