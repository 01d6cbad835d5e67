"""Which tile is best where, what each loses against the best of every point, and the tuning entry that follows. Pure.

As FreeToken#723 has it: a tile's loss at a point is its time over the best tile's there, less one; of a tile, or of a
table of tiles, the mean and the largest loss over all points count.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import log, sqrt

from ..contract.gpus import Gpu, architecture
from ..kernels.tiles import Tile, least_tile, most_block_m, shared_memory
from ..kernels.variants import Variant

# What a sweep tries where nothing is asked for: 144 tiles, as FreeToken#723.
GRID = {
    "block_m": (16, 32, 64, 128),
    "block_n": (32, 64, 128),
    "block_kb": (32, 64),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4),
}
_LETTERS = {"m": "block_m", "n": "block_n", "kb": "block_kb", "w": "num_warps", "s": "num_stages"}
STEP_COST = 0.01  # mean loss that one more step of a table must save

Key = tuple[str, int, float]  # a point: layer, tokens, tokens per expert


@dataclass(frozen=True)
class Loss:
    """Against the best of each point; 0.02 is 2 %."""

    mean: float
    largest: float

    def __str__(self) -> str:
        return f"{self.mean:+.1%} ({self.largest:+.0%})"


def grid(text: str) -> dict[str, tuple[int, ...]]:
    """GRID, with the values that "m=16,32;w=4" names. Raises ValueError for another form."""
    found = dict(GRID)
    for part in filter(None, text.split(";")):
        letter, _, values = part.partition("=")
        if letter not in _LETTERS or not all(value.isdecimal() for value in values.split(",")):
            raise ValueError(f"--tiles is {text!r}, but should read m=16,32;n=64;kb=32;w=4,8;s=3, or a part of it")
        found[_LETTERS[letter]] = tuple(map(int, values.split(",")))
    return found


def tiles(gpu: Gpu, variant: Variant, sizes: Mapping[str, Sequence[int]]) -> Iterator[Tile]:
    """Those of the grid `sizes` that `variant` may have on `gpu`, and that fit into its shared memory."""
    least, most = least_tile(variant), most_block_m(gpu, variant)
    facts = architecture(gpu)
    for values in product(*(sizes[name] for name in GRID)):
        tile = Tile(**dict(zip(GRID, values, strict=True)))
        small = any(getattr(tile, name) < getattr(least, name) for name in GRID)
        large = most is not None and tile.block_m > most
        if not small and not large and shared_memory(tile, facts, variant) <= facts.shared_memory:
            yield tile


Times = Mapping[Key, Mapping[Tile, float]]


def best(times: Times) -> dict[Key, Tile]:
    """The fastest tile of each point."""
    return {key: min(found, key=found.get) for key, found in times.items()}


def loss(times: Times, chosen: Mapping[Key, float]) -> Loss:
    """Of the times `chosen`, one a point. Raises KeyError where a point has none."""
    losses = [chosen[key] / min(found.values()) - 1 for key, found in times.items()]
    return Loss(sum(losses) / len(losses), max(losses))


def losses(times: Times) -> dict[Tile, Loss]:
    """Of each tile that has a time at every point, the least mean loss first."""
    everywhere = set.intersection(*(set(found) for found in times.values()))
    found = {tile: loss(times, {key: times[key][tile] for key in times}) for tile in everywhere}
    return dict(sorted(found.items(), key=lambda item: item[1].mean))


Entry = tuple[tuple[float, Tile], ...]  # as tuning.Steps: (at least so many tokens per expert, tile), the largest first


def suggest(times: Times) -> Entry:
    """The steps of tokens per expert whose logarithmic loss is least, each step but the first at STEP_COST a point.

    A step begins halfway, geometrically, between the points on either side of it.
    """
    per_expert, cost = sorted({key[2] for key in times}), STEP_COST * len(times)
    groups = {one: [key for key in times if key[2] == one] for one in per_expert}
    shared = set.intersection(*(set(found) for found in times.values()))

    def lost(first: int, last: int, tile: Tile) -> float:
        keys = [key for one in per_expert[first : last + 1] for key in groups[one]]
        return sum(log(times[key][tile] / min(times[key].values())) for key in keys)

    @cache
    def cheapest(last: int) -> tuple[float, tuple[tuple[int, Tile], ...]]:
        """The least loss of the points up to `last`, and the steps (first point, tile) that have it."""
        if last < 0:
            return -cost, ()
        options = []
        for first in range(last + 1):
            before, steps = cheapest(first - 1)
            tile = min(shared, key=lambda one: lost(first, last, one))
            options.append((before + cost + lost(first, last, tile), (*steps, (first, tile))))
        return min(options, key=lambda option: option[0])

    steps = cheapest(len(per_expert) - 1)[1]
    begins = [0, *(_between(per_expert[first - 1], per_expert[first]) for first, _ in steps[1:])]
    return tuple((begin, tile) for begin, (_, tile) in reversed([*zip(begins, steps, strict=True)]))


def _between(below: float, above: float) -> float:
    """Halfway, as a whole number where one lies there."""
    middle = sqrt(below * above)
    return round(middle) if below < round(middle) <= above else middle


def of_entry(times: Times, entry: Entry) -> Loss:
    """What a table of steps loses."""
    return loss(times, {key: times[key][next(tile for least, tile in entry if key[2] >= least)] for key in times})


def entry_text(entry: Entry) -> str:
    """As kernels/tuning.py would have it."""
    return "(" + " ".join(f"({least:.4g}, {tile})," for least, tile in entry) + ")"
