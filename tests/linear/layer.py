"""Linear layers for these tests: inputs of several kinds, what is right for them, and how plans are run."""

from dataclasses import dataclass

import torch

from nvfp4_suite.contract.case import hashed, torch_dtype
from nvfp4_suite.kernels import linear
from nvfp4_suite.kernels.linear_plan import LinearPlan
from nvfp4_suite.reference import formats

from ..poison import poisoned_allocations


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

    def outputs(self, sums: torch.Tensor) -> torch.Tensor:
        """What the sums [M, N], in float64, become: rounded to fp32, times the global in fp32, rounded to the dtype."""
        return (sums.float() * self.global_scale).to(self.x.dtype)


def order_free(m: int, n: int, k: int, dtype: str) -> Layer:
    """All codes, scales of all mantissas over two binades, globals of 24 bits; x are small integers times 2^row.

    Products are multiples of 2^(row - 5) and below 2^(row + 4.4) times the largest integer, which leaves sums of any
    order exact: all magnitudes together stay below 2^22 grids.
    """
    key = f"linear/orderfree-m{m}n{n}k{k}-{dtype}"
    most = 7 if k <= 512 else 1
    unit = 2.0 ** (torch.arange(m).double() % 7 - 3)[:, None]
    x = (hashed(f"{key}/x", m, k) >> 8) % (2 * most + 1) - most
    layer = _layer(key, (x * unit).to(torch_dtype(dtype)), n, scales=16)
    magnitudes = layer.x.double().abs() @ layer.weights().abs().T
    assert (magnitudes < 2.0**22 * unit * 2.0**-5).all(), f"{key} is not order-free"
    return layer


def random(m: int, n: int, k: int, dtype: str) -> Layer:
    """Near-normal x, all weight bytes, scales over three binades."""
    key = f"linear/random-m{m}n{n}k{k}-{dtype}"
    bell = (hashed(f"{key}/x", m, k, 4) >> 16).sum(-1) - 2 * 0xFFFF
    return _layer(key, (bell.double() / 37_837).to(torch_dtype(dtype)), n, scales=24)


def _layer(key: str, x: torch.Tensor, n: int, scales: int) -> Layer:
    k = x.shape[1]
    packed = (hashed(f"{key}/packed", n, k // 2) & 0xFF).to(torch.uint8)
    scale = (0x30 + hashed(f"{key}/scale", n, k // 16) % scales).to(torch.uint8).view(torch.float8_e4m3fn)
    global_scale = (1 + (hashed(f"{key}/global", n) >> 9).float() / 2**23) * 2.0 ** -round(3 + k.bit_length() / 2)
    return Layer(x, packed, scale, global_scale)


def run_plan(plan: LinearPlan, layer: Layer, device: str) -> torch.Tensor:
    """The output of `plan`, whichever GPU it was made for, on the CPU, from poisoned buffers."""
    with poisoned_allocations():
        return linear.run(plan, *layer.on(device)).cpu()
