"""golden/plans.json, the file: read with suspicion, written by the tool alone. Pure: neither torch nor triton.

It holds, for each card and setting, for each shape, runs of token counts that have one plan, one line a run: "64 to
256: kernel=prefill_w4a16 launches=8 BLOCK_M=16 ...". Settings in which a card has the same plans share them: "without
input scales: Triton 3.6.0, 3.7.1; with input scales: Triton 3.7.1".
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from . import golden_file
from .plans import TOKENS, Cell, Setting

SCHEMA = "plans.schema.json"

_SETTINGS = re.compile(r"(with|without) input scales: Triton ([0-9.]+(?:, [0-9.]+)*)")
_RUN = re.compile(r"([0-9]+)(?: to ([0-9]+))?: (\S.*)")

Shapes = dict[str, list[str]]  # by the checkpoint's name, the runs


def document(found: Iterable[Cell], changes: list[dict]) -> dict:
    """The file that records `found` and, oldest first, the `changes` that led to it."""
    tables: dict[tuple[str, str], dict[Setting, Shapes]] = defaultdict(lambda: defaultdict(dict))
    for (card, speed, setting, shape), of_shape in groupby(found, key=lambda c: (c.card, c.speed, c.setting, c.shape)):
        tables[card, speed][setting][shape] = _runs(list(of_shape))
    plans = {card: {"plans": _shared(by_setting), "speed": speed} for (card, speed), by_setting in tables.items()}
    return {"$schema": SCHEMA, "changes": changes, "count": _count(plans), "plans": plans, "tokens": list(TOKENS)}


def settings_text(settings: Iterable[Setting]) -> str:
    """ "without input scales: Triton 3.6.0, 3.8.0; with input scales: Triton 3.8.0"."""
    releases = defaultdict(list)
    for scales, triton in sorted(settings):
        releases["with" if scales else "without"].append(triton)
    return "; ".join(f"{word} input scales: Triton {', '.join(tritons)}" for word, tritons in releases.items())


def _shared(by_setting: dict[Setting, Shapes]) -> dict[str, Shapes]:
    """By the text of all settings that have the same plans."""
    groups: list[tuple[list[Setting], Shapes]] = []
    for setting, shapes in by_setting.items():
        same = next((settings for settings, others in groups if others == shapes), None)
        groups.append(([setting], shapes)) if same is None else same.append(setting)
    return {settings_text(settings): shapes for settings, shapes in groups}


def _runs(of_shape: list[Cell]) -> list[str]:
    """Neighbouring token counts with one plan are one line."""
    runs = []
    for plan, same in groupby(of_shape, key=lambda cell: cell.plan):
        counts = [cell.tokens for cell in same]
        span = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
        runs.append(f"{span}: {plan}")
    return runs


def _count(plans: dict[str, dict]) -> int:
    return sum(len(runs) for card in plans.values() for shapes in card["plans"].values() for runs in shapes.values())


def read(path: Path) -> tuple[list[Cell], list[dict]]:
    """The cells and the changes of `path`. Raises Refused for a file that is not there or not as the tool writes it."""
    held = golden_file.load(path)
    try:
        found = [*_cells(held["plans"], held["tokens"])]
        count, changes = _count(held["plans"]), [dict(change) for change in held["changes"]]
        if count != held["count"]:
            raise ValueError(f"it says count {held['count']}, but has {count} runs")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise golden_file.Damaged(path, what) from error
    return found, changes


def _cells(plans: dict, tokens: list[int]) -> Iterable[Cell]:
    for card, entry in plans.items():
        for text, shapes in entry["plans"].items():
            settings = _settings(text)
            for shape, runs in shapes.items():
                planned = [one for run in runs for one in _unrolled(run, tokens)]
                if [count for count, _ in planned] != tokens:
                    raise ValueError(f"the runs of {card}, {shape} do not have each number of tokens once, in order")
                for setting in settings:
                    yield from (Cell(card, entry["speed"], setting, shape, *one) for one in planned)


def _settings(text: str) -> list[Setting]:
    parts = [_SETTINGS.fullmatch(part) for part in text.split("; ")]
    if not all(parts):
        raise ValueError(f"{text!r} names no settings")
    return [Setting(part[1] == "with", triton) for part in parts for triton in part[2].split(", ")]


def _unrolled(run: str, tokens: list[int]) -> list[tuple[int, str]]:
    parts = _RUN.fullmatch(run)
    if not parts:
        raise ValueError(f"{run!r} is no run")
    first, last = int(parts[1]), int(parts[2] or parts[1])
    return [(count, parts[3]) for count in tokens if first <= count <= last]


def write(path: Path, found: Iterable[Cell], changes: list[dict]) -> None:
    """Replaces `path` at once. Raises Refused for what its schema, beside it, does not accept."""
    golden_file.write(path, document(found, changes))
