"""Where the wrong elements lie: in which rows and columns, and in the tokens of which expert."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from .difference import LISTED, Difference, is_rare, lines, log_chance, most, part

TILES = (128, 64, 32, 16)  # edges that a kernel may have, of columns and of token blocks

Place = tuple[int, str]  # how many wrong elements it holds, and its name
Group = tuple[str, Tensor]  # a name, and which rows [rows] it has


def rows_and_columns(d: Difference) -> list[str]:
    """The few rows or columns, the run, or every so many, in which (nearly) all wrong elements lie."""
    total, found = int(d.wrong.count_nonzero()), []
    row, column, elements = d.names
    for axis, name in ((-2, row), (-1, column))[-d.wrong.dim() :]:
        counts = _counts(d.wrong, axis)
        place = _few(counts, name, d.wrong.numel()) or _run(counts, name) or _every(counts, name)
        if place:
            found.append(f"{part(place[0], total)} wrong {elements} are in {place[1]}")
    return found


def _counts(wrong: Tensor, axis: int) -> Tensor:
    """How many elements of each row or each column are wrong."""
    others = [dim for dim in range(wrong.dim()) if dim != wrong.dim() + axis]
    return wrong.sum(others) if others else wrong.long()


def _few(counts: Tensor, name: str, elements: int) -> Place | None:
    """At most LISTED lines that hold nearly all, if that is no accident."""
    total, size, width = int(counts.sum()), len(counts), elements // len(counts)
    ranked = counts.sort(descending=True, stable=True)
    for few in range(1, min(LISTED, size // 2) + 1):
        held = int(ranked.values[:few].sum())
        if held >= most(total) and is_rare(math.comb(size, few), few * width, elements, held, total):
            chosen = sorted(ranked.indices[:few].tolist())
            return held, lines(name, chosen) + (_edge(chosen[0]) if few == 1 else "")
    return None


def _run(counts: Tensor, name: str) -> Place | None:
    """The shortest run of lines, at most half of them, that holds all, or else nearly all."""
    total, size, touched = int(counts.sum()), len(counts), int(counts.count_nonzero())
    for need in (total, most(total)):
        first, last = _shortest(counts, need)
        length, inside = last - first + 1, counts[first : last + 1]
        if 2 * length <= size and is_rare(size, length, size, int(inside.count_nonzero()), touched):
            return int(inside.sum()), _run_name(first, last, size, name) + _edge(first)
    return None


def _shortest(counts: Tensor, need: int) -> tuple[int, int]:
    """The first and the last line of the shortest run that holds `need`."""
    before = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    ends = torch.searchsorted(before, before[:-1] + need)
    length = torch.where(ends < len(before), ends - torch.arange(len(counts)), len(before))
    first = int(length.argmin())
    return first, int(ends[first]) - 1


def _run_name(first: int, last: int, size: int, name: str) -> str:
    if last == size - 1:
        half = " (the second half)" if 2 * first == size else ""
        return f"the last {size - first} {name}s, {first} to {last}{half}"
    half = " (the first half)" if first == 0 and 2 * (last + 1) == size else ""
    return f"{name}s {first} to {last}{half}"


def _edge(first: int) -> str:
    return next((f", from a multiple of {tile}" for tile in TILES if first and first % tile == 0), "")


def _every(counts: Tensor, name: str) -> Place | None:
    """Odd or even lines, or the same run in every tile: the smallest share of all lines, and then the smallest tile."""
    touched, found = int(counts.count_nonzero()), []
    for tile in (2, *reversed(TILES)):
        if 2 * tile > len(counts):
            break
        residue = torch.arange(len(counts)) % tile
        folded = counts.new_zeros(tile).index_add(0, residue, counts)
        first, last = _shortest(folded, most(int(counts.sum())))
        inside = counts[(first <= residue) & (residue <= last)]
        rare = is_rare(tile, len(inside), len(counts), int(inside.count_nonzero()), touched)
        if 2 * len(inside) <= len(counts) and rare:
            found.append((len(inside), tile, first, last, int(inside.sum())))
    if not found:
        return None
    _, tile, first, last, held = min(found)
    run = f"{name} {first}" if first == last else f"{name}s {first} to {last}"
    return held, f"{('even', 'odd')[first]} {name}s" if tile == 2 else f"{run} of every {tile}"


def tokens(d: Difference) -> list[str]:
    """What the tokens of nearly all wrong rows have in common: an expert, a slot, a place in an expert's list."""
    if d.ids is None:
        return []
    row, wrong = d.names[0], d.wrong.any(1)
    count, best = int(wrong.count_nonzero()), (0.0, [])
    if count == 1:
        index = int(wrong.nonzero())
        ids = d.ids[index][d.ids[index] >= 0].tolist()
        return [f"{row} {index} is a token of {lines('expert', ids, len(ids)) if ids else 'no expert'}"]
    for family in _families(d.ids):
        groups = [(name, members) for name, members in family if members.any()]
        for name, members in groups:
            held, size = int((members & wrong).count_nonzero()), int(members.count_nonzero())
            rare = held >= most(count) and is_rare(len(groups), size, len(wrong), held, count)
            if rare and (chance := log_chance(size, len(wrong), held, count)) < best[0]:
                text = f"{part(held, count)} wrong {row}s are {name}, and {part(held, size)} such {row}s are wrong"
                best = chance, [text]
    return best[1]


def _families(ids: Tensor) -> Iterator[list[Group]]:
    """Groups of tokens by what a kernel may treat alike; `ids` [tokens, slots] below 0 name no expert."""
    named = ids[ids >= 0].unique().tolist()
    slots = {slot: f"slot {slot}" for slot in range(ids.shape[1] - 1)} | {ids.shape[1] - 1: "the last slot"}
    position, from_end = _positions(ids)
    yield [(f"tokens of expert {expert}", (ids == expert).any(1)) for expert in named]
    yield [
        ("tokens with a dropped slot", (ids < 0).any(1)),
        ("tokens that name an expert twice", _repeats(ids)),
        ("the first token of each expert", (position == 0).any(1)),
        ("the last token of each expert", (from_end == 0).any(1)),
        *((_beyond(edge, "their expert's list"), (position >= edge).any(1)) for edge in TILES),
    ]
    if len(slots) > 1:
        of_slot = [(slot, expert) for slot in slots for expert in named]
        yield [(f"tokens that have expert {e} in {slots[s]}", ids[:, s] == e) for s, e in of_slot]
    of_edge = [(edge, expert) for edge in TILES for expert in named]
    yield [(_beyond(n, f"the list of expert {e}"), ((position >= n) & (ids == e)).any(1)) for n, e in of_edge]


def _beyond(edge: int, whose: str) -> str:
    return f"tokens at positions >= {edge} in {whose}, a token-block edge"


def _positions(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Each route's place in its expert's list, which is in the order of tokens, from its start and from its end."""
    flat = ids.flatten()
    order = flat.argsort(stable=True)
    _, group, sizes = flat[order].unique_consecutive(return_inverse=True, return_counts=True)
    place = torch.arange(len(flat)) - (sizes.cumsum(0) - sizes)[group]
    position, from_end = torch.empty_like(flat, dtype=torch.int64), torch.empty_like(flat, dtype=torch.int64)
    position[order], from_end[order] = place, sizes[group] - 1 - place
    dropped = ids < 0
    return position.view(ids.shape).masked_fill(dropped, -1), from_end.view(ids.shape).masked_fill(dropped, -1)


def _repeats(ids: Tensor) -> Tensor:
    ordered = ids.sort(dim=1).values
    return ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(1)
