"""Linear layers for these tests: inputs of two kinds, what is right for them, and how plans are run."""

from dataclasses import dataclass
from functools import lru_cache

import torch

from nvfp4_suite.contract.case import Case, random_inputs
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels import linear
from nvfp4_suite.kernels.linear_plan import LinearPlan
from nvfp4_suite.reference import formats
from nvfp4_suite.reference.accumulation import likely_sums, worst_sums
from nvfp4_suite.reference.bounds import Interval
from nvfp4_suite.reference.draws.stages import Gemm, draw_gemm
from nvfp4_suite.reference.ranges import Range

from ..poison import poisoned_allocations

# Rows of x and of W that are drawn; larger layers repeat them. No tile has such a period, so a tile in the place of
# another still shows.
PERIODS = (17, 97)


@dataclass(frozen=True, eq=False)
class Layer:
    """The arguments of nvfp4_linear, on the CPU."""

    x: torch.Tensor
    packed: torch.Tensor
    scale: torch.Tensor
    global_scale: torch.Tensor

    def on(self, device: str) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.to(device) for tensor in vars(self).values())

    def weights(self) -> torch.Tensor:
        """float64 [N, K], without the global scale."""
        return formats.dequantize_blocks(self.packed, self.scale.view(torch.uint8))

    def operands(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x and W, global scale included: what a judge explains a difference with."""
        return self.x, self.weights() * self.global_scale.double()[:, None]

    def outputs(self, sums: torch.Tensor) -> torch.Tensor:
        """What the sums [M, N], in float64, become: rounded to fp32, times the global in fp32, rounded to the dtype."""
        return (sums.float() * self.global_scale).to(self.x.dtype)

    def exact(self) -> torch.Tensor:
        """The outputs where the sums are exact."""
        return self.outputs(self.x.double() @ self.weights().T)

    def enclosure(self) -> Interval:
        """Where the outputs lie, in whatever order they are summed. Globals are positive, so outputs grow with sums."""
        x, tiny = Range.point(self.x.double()), torch.finfo(self.x.dtype).tiny
        worst, likely = (sums_of(x, self.weights(), tiny).range for sums_of in (worst_sums, likely_sums))
        both = worst.within(likely).map(lambda sums: self.outputs(sums).double())
        return Interval(both.lower, both.upper, self.exact().double(), self.x.dtype)


def order_free(m: int, n: int, k: int, dtype: str) -> Layer:
    """Sums that are exact in any order, and as rich as that allows; see reference.draws.stages."""
    drawn = _drawn(min(m, PERIODS[0]), min(n, PERIODS[1]), k, dtype)
    rows, weight_rows = torch.arange(m) % len(drawn.x), torch.arange(n) % PERIODS[1]
    packed, scale, global_scale = (tensor[0, weight_rows] for tensor in vars(drawn.weights).values())
    return Layer(drawn.x[rows], packed, scale.view(torch.float8_e4m3fn), global_scale)


@lru_cache(maxsize=64)
def _drawn(m: int, n: int, k: int, dtype: str) -> Gemm:
    return draw_gemm(f"linear-m{m}n{n}k{k}-{dtype}", m, n, k, dtype, "w4a16")


def random(m: int, n: int, k: int, dtype: str) -> Layer:
    """The first `n` rows of gate_up of a random expert layer, and its tokens."""
    shape = LayerShape(1, 1, k, 16 * -(-n // 32))
    inputs = random_inputs(Case(shape, m, inputs="random", dtype=dtype))
    banks = inputs.banks
    weights = (banks.gate_up_packed, banks.gate_up_scale, banks.gate_up_global)
    return Layer(inputs.hidden_states, *(tensor[0, :n] for tensor in weights))


def run_plan(plan: LinearPlan, layer: Layer, device: str) -> torch.Tensor:
    """The output of `plan`, whichever GPU it was made for, on the CPU, from poisoned buffers."""
    with poisoned_allocations():
        return linear.run(plan, *layer.on(device)).cpu()
