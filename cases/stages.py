"""The case tables of single stages: one line a case. Their inputs are order-free, see reference.draws.stages."""

from typing import NamedTuple

from ..contract.kernel import ACTIVATIONS, DTYPES


class GemmCase(NamedTuple):
    """`rows` of x against `n` weight rows over `k`, for each of `experts`."""

    rows: int
    n: int
    k: int
    dtype: str = "bf16"
    format: str = "w4a16"
    experts: int = 2

    @property
    def id(self) -> str:
        return f"gemm-e{self.experts}r{self.rows}n{self.n}k{self.k}-{self.dtype}-{self.format}"

    @property
    def keys(self) -> list[str]:
        """What the inputs of each expert are drawn from."""
        return [f"{self.id}/expert {expert}" for expert in range(self.experts)]


class ActivationCase(NamedTuple):
    """gate and up of `rows` routes, `columns` wide."""

    rows: int
    columns: int
    activation: str
    dtype: str
    limit: float = 64.0

    @property
    def id(self) -> str:
        return f"activation-r{self.rows}c{self.columns}-{self.activation}-{self.dtype}"


class SumCase(NamedTuple):
    """`top_k` routes for each of `tokens`, `hidden` wide; `atomics`: exact also where every addition rounds."""

    tokens: int
    top_k: int
    hidden: int
    dtype: str = "bf16"
    atomics: bool = False

    @property
    def id(self) -> str:
        atomics = "-atomics" if self.atomics else ""
        return f"sum-t{self.tokens}k{self.top_k}h{self.hidden}-{self.dtype}{atomics}"


# K and N on either side of a step of 64 and of a tile of 64 rows; K of three steps, and of sixteen, which are one of a
# GEMV. All have the four kinds of rows of x.
GEMMS: tuple[GemmCase, ...] = (
    GemmCase(8, 32, 16),
    GemmCase(8, 64, 48, dtype="fp16"),
    GemmCase(8, 96, 64),
    GemmCase(8, 96, 80, dtype="fp16", experts=1),
    GemmCase(8, 32, 192),
    GemmCase(17, 32, 272, experts=1),
    GemmCase(8, 64, 272, dtype="fp16"),
    GemmCase(4, 32, 1024, dtype="fp16", experts=1),
    GemmCase(8, 32, 16, format="w4a4"),
    GemmCase(8, 64, 48, format="w4a4", dtype="fp16"),
    GemmCase(8, 96, 272, format="w4a4"),
    GemmCase(8, 64, 640, format="w4a4", dtype="fp16"),
)

ACTIVATED: tuple[ActivationCase, ...] = tuple(
    ActivationCase(6, 528, activation, dtype) for activation in ACTIVATIONS for dtype in DTYPES
)

SUMS: tuple[SumCase, ...] = (
    SumCase(5, 1, 48),
    SumCase(5, 2, 528),
    SumCase(5, 2, 528, dtype="fp16"),
    SumCase(5, 3, 80),
    SumCase(5, 8, 80, dtype="fp16"),
    SumCase(5, 3, 80, atomics=True),
    SumCase(5, 8, 80, dtype="fp16", atomics=True),
)
