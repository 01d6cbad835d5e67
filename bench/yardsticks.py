"""What the card can do, measured in the same run: cuBLAS bf16 8192^3, and a copy on the device, with its bits inverted.

Measured again for each layer, because a card that is hot does less.
"""

from dataclasses import dataclass
from statistics import median

import torch

from ..reference.accumulation import worst_sums
from ..reference.ranges import Range
from .check import Wrong
from .measure import Timer
from .roofline import Rates
from .statistics import order

SIZE = 8192  # of cuBLAS's M, N and K
COPIED = 2**30  # bytes
ROUNDS = 10
JUDGED = (0, 4095, 8191)  # rows of the product


@dataclass(frozen=True)
class Yardsticks:
    """How large they are; small ones for tests."""

    size: int = SIZE
    copied: int = COPIED

    def measure(self, timer: Timer, device: str) -> Rates:
        """The rates now. Raises Wrong where the product or the copy is wrong."""
        generator = torch.Generator(device).manual_seed(0)
        normal = {"device": device, "dtype": torch.bfloat16, "generator": generator}
        a, b = (torch.randn(self.size, self.size, **normal) for _ in range(2))
        source = torch.randint(2**62, (self.copied // 8,), dtype=torch.int64, device=device, generator=generator)
        product, copy = torch.full_like(a, torch.nan), torch.zeros_like(source)  # not what an earlier run left there
        # Not copy_: in a graph it is the copy engine's, which an H200 does at 2.7 TB/s, where kernels come to 4.3.
        invert = timer.capture(lambda: torch.bitwise_not(source, out=copy))
        replays = [timer.capture(lambda: torch.mm(a, b, out=product)), invert]
        turns = order(2, ROUNDS)
        timer.times(replays, turns)  # until clocks have risen
        times = timer.times(replays, turns)
        multiply, move = (median(t for who, t in zip(turns, times, strict=True) if who == one) for one in (0, 1))
        timer.forget()
        _check_product(a, b, product)
        if not torch.equal(copy, ~source):
            raise Wrong("the yardstick's copy differs from its source")
        return Rates(2 * self.size**3 / multiply * 1e3, 2 * self.copied / move * 1e3)


def _check_product(a: torch.Tensor, b: torch.Tensor, product: torch.Tensor) -> None:
    rows = torch.tensor([row for row in JUDGED if row < len(a)], device=a.device)
    found, tiny = product[rows].double(), torch.finfo(a.dtype).tiny
    enclosed = worst_sums(Range.point(a[rows].double()), b.T.double(), tiny).range
    enclosed = enclosed.map(lambda end: end.float().to(product.dtype).double())
    if not ((enclosed.lower <= found) & (found <= enclosed.upper)).all():
        raise Wrong(f"the yardstick's product of {a.shape[0]} x {a.shape[1]} leaves its enclosure")
