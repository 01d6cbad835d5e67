"""What interleaved rounds of times say: medians, and a ratio with the noise it has. Pure.

Contenders take turns, forward in one round and backward in the next: A B, B A, A B, B A. Two rounds make a pair, in
which a contender's time is the mean of its two. A card that slows down evenly, or that has an effect of who went
before, then slows both sides of a pair alike. The ratio is the median of the pairs' ratios; its interval is between two
of them in order, which needs no law of how times are distributed: the median lies below the k-th smallest of n with
the probability of fewer than k heads in n throws of a coin.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

CONFIDENCE = 0.99
LEAST_PAIRS = 8  # the fewest whose smallest and largest ratio are an interval of that confidence
DIFFERENCE = 0.01  # what is called slower or faster differs by more
RESOLUTION = 0.02  # what is called the same does not differ by more, anywhere in its interval


@dataclass(frozen=True)
class Comparison:
    """`ratio` of a time to the baseline's, above 1 is slower; it lies in [low, high] with CONFIDENCE."""

    ratio: float
    low: float
    high: float

    @property
    def noise(self) -> float:
        """Half the interval's width, as a share of the ratio."""
        return (self.high - self.low) / 2 / self.ratio

    @property
    def word(self) -> str:
        """ "slower" and "faster" where the interval leaves 1 out and the ratio is off by more than DIFFERENCE; "same"
        where the interval lies within RESOLUTION of 1; "unclear" otherwise.
        """
        if self.low > 1 and self.ratio > 1 + DIFFERENCE:
            return "slower"
        if self.high < 1 and self.ratio < 1 / (1 + DIFFERENCE):
            return "faster"
        return "same" if self.low > 1 / (1 + RESOLUTION) and self.high < 1 + RESOLUTION else "unclear"


def order(contenders: int, rounds: int) -> list[int]:
    """Who is timed when: `rounds` times each of `contenders`, forward and backward in turn."""
    forward = list(range(contenders))
    return [one for number in range(rounds) for one in (forward[::-1] if number % 2 else forward)]


def by_contender(order: Sequence[int], times: Sequence[float]) -> list[list[float]]:
    """Each contender's times, round by round. Raises ValueError unless there is a time for each turn."""
    found: dict[int, list[float]] = {}
    for one, time in zip(order, times, strict=True):
        found.setdefault(one, []).append(time)
    return [found[one] for one in sorted(found)]


def compare(times: Sequence[float], baseline: Sequence[float]) -> Comparison:
    """`times` against `baseline`, round by round. Raises ValueError for fewer than LEAST_PAIRS pairs of rounds."""
    mine, theirs = _pairs(times), _pairs(baseline)
    if len(mine) != len(theirs) or len(mine) < LEAST_PAIRS:
        raise ValueError(f"there are {len(mine)} and {len(theirs)} pairs, but should be {LEAST_PAIRS} or more of both")
    ratios = sorted(a / b for a, b in zip(mine, theirs, strict=True))
    out = outside(len(ratios))
    return Comparison(median(ratios), ratios[out], ratios[-1 - out])


def outside(count: int) -> int:
    """How many of `count` ordered values lie beyond each end of the median's interval."""
    tail, beyond, place = 0.0, (1 - CONFIDENCE) / 2, 0
    for place in range(count // 2):
        tail += math.comb(count, place) / 2**count
        if tail > beyond:
            break
    return max(place - 1, 0)


def _pairs(times: Sequence[float]) -> list[float]:
    return [(first + second) / 2 for first, second in zip(times[::2], times[1::2], strict=False)]


def rounds_for(seconds: float, budget: float, most: int = 80) -> int:
    """An even number of rounds of `seconds` each that take about `budget` seconds, never too few to compare."""
    pairs = int(budget / seconds / 2) if seconds > 0 else most // 2
    return 2 * min(max(pairs, LEAST_PAIRS), most // 2)


def settled(times: Sequence[float], last: int = 4, within: float = 0.01) -> bool:
    """Whether the last of `times` no longer change: their median is that of as many before, or nearly."""
    if len(times) < 2 * last:
        return False
    now, before = median(times[-last:]), median(times[-2 * last : -last])
    return abs(now - before) <= within * before


def geometric_mean(values: Sequence[float]) -> float:
    """Raises ValueError for none."""
    if not values:
        raise ValueError("values are none, but should be at least one")
    return math.exp(math.fsum(map(math.log, values)) / len(values))
