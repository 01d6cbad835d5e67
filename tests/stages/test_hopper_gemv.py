"""The GEMV for sm_90 on torch tensors, copies as late as they may be; and what its layouts give each thread."""

from itertools import product

import pytest
import torch

from nvfp4_suite.cases.stages import GemmCase
from nvfp4_suite.contract.case import Case, random_inputs
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import experts, hopper_banks, hopper_gemv
from nvfp4_suite.kernels.device import hopper_gemv as device_code
from nvfp4_suite.kernels.plan import LayerPlan, plan_layer
from nvfp4_suite.reference import judge, moe
from nvfp4_suite.reference.rounding import rounding_form

from ..poison import poisoned_allocations
from ..starts import at_starts
from .gluon_on_torch import Pointer, Shared, Sums, on_torch
from .launches import drawn, gemm
from .test_hopper_order import assembled, of_thread

H200 = Gpu("NVIDIA H200", (9, 0))
CASES = [GemmCase(3, 64, 1024), GemmCase(2, 96, 1536, "fp16", experts=3)]


class Ring(Shared):
    """Slots in shared memory, with poison until something is copied there."""

    @classmethod
    def allocated(cls, dtype: torch.dtype, shape: list[int], _layout: object) -> "Ring":
        return cls(torch.empty(shape, dtype=dtype)).poisoned()

    def poisoned(self) -> "Ring":
        self.tensor.view(torch.uint8).fill_(0xFF)  # of scales, NaN
        return self

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape

    def index(self, slot: int) -> "Ring":
        return Ring(self.tensor[slot])

    def reshape(self, shape: list[int]) -> "Ring":
        return Ring(self.tensor.view(shape))


class Copies:
    """Asynchronous copies: a slot is poisoned from their beginning until they are waited for."""

    def __init__(self):
        self.begun, self.groups = [], []

    def async_load(self, to: Ring, pointer: Pointer, mask: bool) -> None:
        to.poisoned()
        self.begun.append((to, pointer.flat[pointer.place] if mask else torch.zeros(to.shape)))

    def commit_group(self) -> None:
        self.groups.append(self.begun)
        self.begun = []

    def wait_group(self, most: int) -> None:
        while len(self.groups) > most:
            for to, values in self.groups.pop(0):
                to.tensor.copy_(values)


def run_program(program: int, arguments: dict, constants: dict) -> Copies:
    copies = Copies()
    kernel = on_torch(
        device_code.w4a16_hopper_gemv,
        inline_asm_elementwise=assembled,
        async_copy=copies,
        mma_v2=lambda a, b, acc: (a.double() @ b.double() + acc).float(),
        allocate_shared_memory=Ring.allocated,
        program_id=lambda _: torch.tensor(program),
        sum=lambda values, dim: values.sum(dim).as_subclass(Sums),
        zeros=lambda shape, dtype, _layout: torch.zeros(shape, dtype=dtype),
        static_range=range,
        static_assert=lambda holds: None,
        barrier=lambda: None,
    )
    kernel(**arguments, **constants)
    return copies


def start_on_torch(_start, launch, grid, **arguments) -> None:
    """In place of launch.start."""
    assert launch.kernel == hopper_gemv.GEMV
    given = {name: Pointer(one) if isinstance(one, torch.Tensor) else one for name, one in arguments.items()}
    for program in range(grid[0]):
        assert not any(run_program(program, given, dict(launch.constexprs)).groups), "copies nobody waited for"


def planned(case: GemmCase, stage: str) -> LayerPlan:
    sizes = (case.k, case.n // 2) if stage == "gate_up" else (case.n, case.k)
    return plan_layer(H200, LayerShape(case.experts, 1, *sizes), 1, dtype=case.dtype, kernel=hopper_gemv.NAME)


@pytest.mark.parametrize("stage", ["gate_up", "down"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_every_row_of_every_route_is_right_in_bits(case, stage, monkeypatch):
    gemms = drawn(case)
    at_starts(monkeypatch, start_on_torch)
    for found, one in zip(gemm(planned(case, stage), stage, gemms, "cpu"), gemms, strict=True):
        form = rounding_form(one.format, one.dtype)
        if stage == "gate_up":
            wanted = torch.cat(moe.gate_up(*one.operands(), form), dim=1)
        else:
            wanted = moe.down(*one.operands(), one.topk_weights.double(), form)
        judge.bitwise(found, wanted.to(one.dtype), case=case.id)


def test_routes_of_a_token_read_its_row_and_that_of_a_dropped_route_is_left_alone(monkeypatch):
    at_starts(monkeypatch, start_on_torch)
    plan, n, k = planned(GemmCase(1, 32, 1024, experts=1), "gate_up"), 32, 1024
    ids, x = torch.tensor([[-1, 1, 0]], dtype=torch.int32), torch.ones(1, k, dtype=torch.bfloat16)
    bank = torch.zeros(1, n, k // 2, dtype=torch.uint8), torch.zeros(1, n, k // 16, dtype=torch.uint8), torch.ones(1, n)
    with poisoned_allocations():
        out = experts.gemm(plan.launch("gate_up"), x, *bank, *experts.routed_by(plan, torch.ones(1, 3), ids))
    assert out[:2].isnan().all() and not out[2].isnan().any()


def test_sizes_that_it_is_not_compiled_for_are_refused():
    plan = planned(GemmCase(1, 32, 1024), "gate_up")
    routed = experts.routed_by(plan, torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int32))
    for n, k, message in ((48, 1024, "N is 48, .* a multiple of 32"), (32, 1280, "K is 1280, .* a multiple of 512")):
        bank = torch.zeros(1, n, k // 2, dtype=torch.uint8), torch.zeros(1, n, k // 16), torch.ones(1, n)
        with pytest.raises(ValueError, match=message):
            experts.gemm(plan.launch("gate_up"), torch.zeros(1, k, dtype=torch.bfloat16), *bank, *routed)


def test_its_plan_is_refused_elsewhere_and_for_prepared_banks():
    case = Case(LayerShape(2, 2, 1024, 256), 5, inputs="random")
    inputs, plan = random_inputs(case), plan_layer(H200, case.shape, case.tokens, kernel=hopper_gemv.NAME)
    rows = inputs.topk_weights, inputs.topk_ids
    with pytest.raises(ValueError, match=r"plan is decode_w4a16_hopper's for sm_90, .* on cpu: it needs sm_90"):
        experts.run(plan, inputs.hidden_states, inputs.banks, *rows)
    with pytest.raises(ValueError, match="banks are PreparedBanks, but should be ExpertBanks for decode_w4a16_hopper"):
        experts.run(plan, inputs.hidden_states, hopper_banks.rearranged(inputs.banks), *rows)


# Which k of a warp's 128 stands at each position of mma's operands, told by where `spread` puts x.
ORDER = on_torch(device_code.spread)(torch.arange(128).view(1, 4, 32), None)[0, :, 0].tolist()


def test_each_k_has_one_position():
    assert sorted(ORDER) == list(range(128))


@pytest.mark.parametrize("rows", [16, 32])
def test_each_thread_decodes_what_mma_reads_there(rows):
    """Of mma's first operand, by the PTX ISA, lane l has rows l / 4 and + 8, and k 2 (l % 4), + 1, + 8 and + 9."""
    layout = device_code.weights_layout(rows, 4)
    for warp, lane in product(range(4), range(32)):
        mine = [16 * part + lane // 4 + add for part in range(rows // 16) for add in (0, 8)]
        places = [16 * s + 2 * (lane % 4) + add for s in range(8) for add in (0, 1, 8, 9)]
        wanted = {(warp, row, ORDER[place]) for row, place in product(mine, places)}
        found = of_thread(layout, warp, lane)
        assert {(w, row, 32 * t + 16 * u + 8 * h + 4 * j + s) for w, row, t, u, h, s, j in found} == wanted
    assert layout.reg_bases[:3] == [[0, 0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 2, 0]]


def test_each_thread_spreads_what_mma_reads_there():
    """Of its second operand, lane l has column l / 4, and k as of the first."""
    layout = device_code.x_layout(4)
    for warp, lane in product(range(4), range(32)):
        places = [16 * s + 2 * (lane % 4) + add for s in range(8) for add in (0, 1, 8, 9)]
        found = {(w, 32 * t + k, column) for w, t, k, column in of_thread(layout, warp, lane)}
        assert found == {(warp, ORDER[place], lane // 4) for place in places}
