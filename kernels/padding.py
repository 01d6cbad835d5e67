"""How many rows blocks hold beside the routes they are for. Pure.

Every expert's routes fill whole blocks of BLOCK_M, and the GEMMs multiply the empty rows too: where experts get few
routes, work follows blocks and not routes (ROCm/vllm#1069).
"""

import math
from functools import lru_cache

from ..contract.shapes import LayerShape

NEGLIGIBLE = 12  # standard deviations from the mean, where a binomial distribution adds nothing to a double


def balanced_rows(shape: LayerShape, tokens: int, block_m: int) -> int:
    """Rows of all blocks when experts get equally many routes, or one more: R = tokens * top_k routes among E experts.

    (E - R % E) * ceil(R // E / m) * m + (R % E) * ceil((R // E + 1) / m) * m
    """
    each, more = divmod(tokens * shape.top_k, shape.experts)
    blocks = (shape.experts - more) * -(-each // block_m) + more * -(-(each + 1) // block_m)
    return blocks * block_m


@lru_cache(maxsize=4096)
def expected_rows(shape: LayerShape, tokens: int, block_m: int) -> float:
    """The mean of the rows of all blocks over random routings, in which a token's experts differ, all equally likely.

    Each expert then gets n ~ Binomial(T, p = top_k / E) routes, and E * sum_n P(n) * ceil(n / m) * m is the mean.
    """
    p = shape.top_k / shape.experts
    if p >= 1:  # every token goes to every expert
        return balanced_rows(shape, tokens, block_m)
    reach = NEGLIGIBLE * math.sqrt(tokens * p * (1 - p)) + NEGLIGIBLE
    few, many = max(1, math.floor(tokens * p - reach)), min(tokens, math.ceil(tokens * p + reach))
    blocks = sum(_binomial(tokens, n, p) * -(-n // block_m) for n in range(few, many + 1))
    return shape.experts * blocks * block_m


def _binomial(tokens: int, n: int, p: float) -> float:
    ways = math.lgamma(tokens + 1) - math.lgamma(n + 1) - math.lgamma(tokens - n + 1)
    return math.exp(ways + n * math.log(p) + (tokens - n) * math.log1p(-p))


def expected_ratio(shape: LayerShape, tokens: int, block_m: int) -> float:
    """`expected_rows` over routed rows: 1 where every block is full."""
    return expected_rows(shape, tokens, block_m) / (tokens * shape.top_k)
