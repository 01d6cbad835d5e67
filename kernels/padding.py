"""How many rows blocks hold beside the routes they are for. Pure.

Every expert's routes fill whole blocks of BLOCK_M, and the GEMMs multiply the empty rows too, all of them or as many as
the least width of a block takes in: where experts get few routes, work follows blocks and not routes
(ROCm/vllm#1069).
"""

import math
from functools import lru_cache

from ..contract.shapes import LayerShape

NEGLIGIBLE = 12  # standard deviations from the mean, where a binomial distribution adds nothing to a double


Widths = tuple[int, ...]  # of a block that is not full, ascending: the last is BLOCK_M


def padded(routes: int, widths: Widths) -> int:
    """Rows of the blocks of an expert with so many routes: all full but for the last, which has the least width."""
    full, left = divmod(routes, widths[-1])
    return full * widths[-1] + (next(width for width in widths if width >= left) if left else 0)


def balanced_rows(shape: LayerShape, tokens: int, *widths: int) -> int:
    """Rows of all blocks when experts get equally many routes, or one more: R = tokens * top_k routes among E experts.

    (E - R % E) * padded(R // E) + (R % E) * padded(R // E + 1)
    """
    each, more = divmod(tokens * shape.top_k, shape.experts)
    return (shape.experts - more) * padded(each, widths) + more * padded(each + 1, widths)


@lru_cache(maxsize=4096)
def expected_rows(shape: LayerShape, tokens: int, *widths: int) -> float:
    """The mean of the rows of all blocks over random routings, in which a token's experts differ, all equally likely.

    Each expert then gets n ~ Binomial(T, p = top_k / E) routes, and E * sum_n P(n) * padded(n) is the mean.
    """
    p = shape.top_k / shape.experts
    if p >= 1:  # every token goes to every expert
        return balanced_rows(shape, tokens, *widths)
    reach = NEGLIGIBLE * math.sqrt(tokens * p * (1 - p)) + NEGLIGIBLE
    few, many = max(1, math.floor(tokens * p - reach)), min(tokens, math.ceil(tokens * p + reach))
    return shape.experts * sum(_binomial(tokens, n, p) * padded(n, widths) for n in range(few, many + 1))


def _binomial(tokens: int, n: int, p: float) -> float:
    ways = math.lgamma(tokens + 1) - math.lgamma(n + 1) - math.lgamma(tokens - n + 1)
    return math.exp(ways + n * math.log(p) + (tokens - n) * math.log1p(-p))


def expected_ratio(shape: LayerShape, tokens: int, *widths: int) -> float:
    """`expected_rows` over routed rows: 1 where every block is full."""
    return expected_rows(shape, tokens, *widths) / (tokens * shape.top_k)
