"""The decode layer: a token's bytes are its own, whatever batch it is in, and the same under every card's plan."""

import dataclasses

import pytest
import torch

from nvfp4_suite.contract import gpus
from nvfp4_suite.contract.case import Case, Inputs, random_inputs
from nvfp4_suite.contract.gpus import CATALOG, PORTABLE
from nvfp4_suite.contract.shapes import CHECKPOINTS, LayerShape
from nvfp4_suite.kernels import decode, experts, hopper_gemv
from nvfp4_suite.kernels.plan import DECODE, LayerPlan, plan_layer
from nvfp4_suite.reference import judge

from ..engine import INTERPRETED, can_run_here, kernels_here, on_gpu
from ..held import held
from ..moe.subject import expected_of, layer_arguments, plan_options, run_plan
from ..poison import poisoned_allocations

MOST = 65
NARROW, WIDE, RAGGED = LayerShape(4, 1, 32, 16), LayerShape(2, 1, 1024, 16), LayerShape(4, 2, 48, 16)


def _is_for_sm_90(shape: LayerShape) -> bool:
    """Whether the kernel for sm_90 has a GEMV of its own here; else it is decode.py's."""
    return not INTERPRETED and not hopper_gemv.lacks(gpus.current(0), shape, experts.release())


# Of these GPUs run all batches; the kernel for sm_90 takes gate_up of the first and the third, down of the last.
SHAPES = [LayerShape(16, 4, 1024, 768), LayerShape(16, 4, 272, 80), LayerShape(64, 8, 2048, 512)]
SHAPES += [LayerShape(8, 2, 1536, 1024)]

# The largest batch is cut into these; a batch of 65 in the interpreter only where a route is two programs.
BATCHES = [
    (Case(NARROW, MOST, "hot", inputs="random"), [1, 2]),
    (Case(WIDE, 3, "few", inputs="random"), [1]),
    (Case(RAGGED, 4, inputs="random", dtype="fp16"), [1, 3]),
    (Case(RAGGED, 3, "twice", inputs="random", weight_on_input=True), [1]),
    (Case(RAGGED, 5, "dropped", inputs="random", activation="gelu"), [2]),
]
BATCHES += on_gpu(
    [
        (Case(shape, MOST, routing, inputs="random", dtype=dtype), list(range(1, MOST)))
        for shape in SHAPES
        for routing in ("random", "hot", "few", "twice", "dropped")
        for dtype in ("bf16", "fp16")
    ]
)
KERNELS = [kernel.name for kernel in kernels_here() if kernel.name in DECODE]
RUNS = [(name, *batch) for name in KERNELS for batch in BATCHES if name == decode.NAME or _is_for_sm_90(batch[0].shape)]


@held(maxsize=1)
def _on_device(case: Case, device: str) -> Inputs:
    with torch.device(device):
        inputs = random_inputs(case)
        return inputs if case.shape.hidden % 512 else _cancelling(inputs)


def _cancelling(inputs: Inputs) -> Inputs:
    """gate_up's sums become 0 but for their rounding, which shows any change of their order; 8 bits seldom would.

    The second half of K repeats the first with the other sign in x, its blocks in another order: mirrored or shifted,
    the halves of a tree would cancel exactly. x spreads over many binades.
    """
    half = inputs.banks.hidden // 2
    x, packed = inputs.hidden_states[:, :half], inputs.banks.gate_up_packed[..., : half // 2]
    x = (x.double() * 2.0 ** (torch.arange(half) % 12 - 8)).to(x.dtype)
    scale = inputs.banks.gate_up_scale.view(torch.uint8)[..., : half // 16]
    order = torch.arange(half // 16) * 7 % (half // 16)

    def again(part: torch.Tensor) -> torch.Tensor:
        return part.unflatten(-1, (half // 16, -1))[..., order, :].flatten(-2)

    banks = dataclasses.replace(
        inputs.banks,
        gate_up_packed=torch.cat([packed, again(packed)], dim=-1),
        gate_up_scale=torch.cat([scale, again(scale)], dim=-1).view(torch.float8_e4m3fn),
        gate_up_global=inputs.banks.gate_up_global * 2.0**18,  # so that the noise is among fp16's normal numbers
    )
    return dataclasses.replace(inputs, hidden_states=torch.cat([x, -again(x)], dim=1), banks=banks)


def _part(inputs: Inputs, tokens: slice) -> Inputs:
    names = ("hidden_states", "topk_weights", "topk_ids")
    return dataclasses.replace(inputs, **{name: getattr(inputs, name)[tokens] for name in names})


def _gpu() -> gpus.Gpu:
    return PORTABLE if INTERPRETED else gpus.current(0)


def _decoded(kernel: str, case: Case, inputs: Inputs) -> torch.Tensor:
    options = {"triton": experts.release(), "kernel": kernel}
    plan = plan_layer(_gpu(), case.shape, len(inputs.hidden_states), **options, **plan_options(case))
    with poisoned_allocations():
        return experts.run(plan, *layer_arguments(inputs))


@pytest.mark.parametrize(("kernel", "case", "sizes"), RUNS, ids=[f"{name}-{case.id}" for name, case, _ in RUNS])
def test_a_token_has_the_same_bytes_in_every_batch(kernel: str, case: Case, sizes: list[int], device):
    inputs = _on_device(case, device)
    whole = _decoded(kernel, case, inputs)
    assert not whole.isnan().any()
    for size in sizes:  # from the front, and from the back, where a token has another place
        judge.bitwise(_decoded(kernel, case, _part(inputs, slice(size))), whole[:size], tokens=size)
        judge.bitwise(_decoded(kernel, case, _part(inputs, slice(-size, None))), whole[-size:], last_tokens=size)


@pytest.mark.parametrize("gpu", [PORTABLE, *CATALOG], ids=lambda gpu: gpu.name)
def test_no_launch_depends_on_the_number_of_tokens(gpu):
    for shape in CHECKPOINTS.values():
        for kernel in DECODE:
            plans = {plan_layer(gpu, shape, tokens, kernel=kernel).launches for tokens in (1, 2, 16, 65, 4096)}
            assert len(plans) == 1


def _plans(case: Case) -> list[LayerPlan]:
    cards = [gpu for gpu in (*CATALOG, PORTABLE) if can_run_here(gpu)]
    plans = [plan_layer(gpu, case.shape, case.tokens, kernel="decode", **plan_options(case)) for gpu in cards]
    return list({plan.launches: plan for plan in plans}.values())


# Several experts; K on either side of a step of 32 words, and within one; rows on either side of a block of 64.
ORDERFREE = [Case(LayerShape(4, 2, 48, 80), 3), Case(LayerShape(3, 2, 272, 32), 2, "twice", dtype="fp16")]
ORDERFREE += [Case(LayerShape(4, 4, 80, 48), 3, "dropped", weight_on_input=True)]
PLANS = [(case, plan) for case in ORDERFREE for plan in _plans(case)]


@pytest.mark.parametrize(("case", "plan"), PLANS, ids=[f"{case.id}-{plan.reason}" for case, plan in PLANS])
def test_every_cards_plan_gives_the_references_bits(case: Case, plan: LayerPlan, device):
    judge.bitwise(run_plan(plan, case, device), expected_of(case, "w4a16"), case=case.id, plan=plan.reason)


@pytest.mark.fault("vllm-project/vllm-xpu-kernels#571")
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dropped", [-1, 4])
def test_the_row_of_a_dropped_route_is_left_alone(dropped, kernel, device):
    """Experts 0 to 3 are the middle of six, so that a read beside them would find something to write."""
    hidden = 32 if kernel == decode.NAME else hopper_gemv.LEAST_K
    inputs = random_inputs(Case(LayerShape(6, 1, hidden, 16), 3, inputs="random")).to(device)
    names = ("gate_up_packed", "gate_up_scale", "gate_up_global")
    middle = [getattr(inputs.banks, name)[1:5] for name in names]
    ids = torch.tensor([[3], [dropped], [0]], dtype=torch.int32, device=device)
    plan = plan_layer(_gpu(), LayerShape(4, 1, hidden, 16), 3, triton=experts.release(), kernel=kernel)
    with poisoned_allocations():
        routed = experts.routed_by(plan, inputs.topk_weights, ids)
        out = experts.gemm(plan.launch("gate_up"), inputs.hidden_states, *middle, *routed)
    assert out[1].isnan().all() and not out[[0, 2]].isnan().any()
