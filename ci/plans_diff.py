"""Two tables of plans compared, for a person: where in tokens per expert, and from what to what. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ..contract.shapes import CHECKPOINTS
from .plans import GEMMS, SETTINGS, Cell, Setting
from .plans_file import settings_text

HEADLINE = ("kernel", "BLOCK_M")  # differences that are told apart; the others follow from them, mostly

Change = tuple[str, str, str]  # what, from, to


@dataclass(frozen=True)
class Difference:
    """A cell whose plan differs, in what, and in which settings it differs so."""

    cell: Cell
    changes: tuple[Change, ...]
    settings: tuple[Setting, ...]

    @property
    def headline(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change[0] in HEADLINE)

    @property
    def tokens_per_expert(self) -> float:
        shape = CHECKPOINTS[self.cell.shape]
        return self.cell.tokens * shape.top_k / shape.experts


def differing(recorded: list[Cell], today: list[Cell]) -> list[Difference]:
    """The cells of both tables that differ, once for all settings in which they differ alike. A card in another class
    differs too, whatever its plans are.
    """
    before, found = {cell.key: cell for cell in recorded}, defaultdict(list)
    for cell in today:
        old = before.get(cell.key, cell)
        if (old.plan, old.speed) != (cell.plan, cell.speed):
            moved = () if old.speed == cell.speed else (("class", old.speed, cell.speed),)
            found[cell.card, cell.shape, cell.tokens, (*moved, *_changes(old.plan, cell.plan))].append(cell)
    return [Difference(same[0], key[-1], tuple(cell.setting for cell in same)) for key, same in found.items()]


def explained(recorded: list[Cell], today: list[Cell]) -> list[str]:
    """The difference as lines, none where there is none: by class and architecture, and what is only in one table."""
    found = differing(recorded, today)
    groups = defaultdict(list)
    for difference in found:
        groups[difference.cell.speed, difference.settings, difference.headline].append(difference)
    texts = defaultdict(list)  # classes with one text share it
    for (speed, *_), differences in groups.items():
        texts[_described(differences)].append((speed, differences))
    only = "only " if len(texts) == 1 else ""
    lines = []
    for (where, *more), together in texts.items():
        speeds = ", ".join(dict.fromkeys(speed for speed, _ in together))
        cards = ", ".join(dict.fromkeys(one.cell.card for _, differences in together for one in differences))
        lines += [f"differs {only}on {speeds} at {where}", *more, f"  on {cards}"]
    return lines + _missing("gone", recorded, today) + _missing("new", today, recorded)


def changes_of(recorded: list[Cell], today: list[Cell]) -> list[str]:
    """`explained` without what is new, which changes nothing that was recorded."""
    known = {cell.key for cell in recorded}
    return explained(recorded, [cell for cell in today if cell.key in known])


def _described(differences: list[Difference]) -> tuple[str, ...]:
    """Where and in what all of them differ, then a line for each change that only some have."""
    means = [difference.tokens_per_expert for difference in differences]
    span = " to ".join(dict.fromkeys(_short(mean) for mean in (min(means), max(means))))
    changes = dict.fromkeys(change for difference in differences for change in difference.changes)
    having = {change: sum(change in difference.changes for difference in differences) for change in changes}
    where = f"{span} tokens per expert{_in(differences[0].settings)}"
    common = ", ".join(_text(change) for change in changes if having[change] == len(differences))
    some = [change for change in changes if having[change] < len(differences)]
    partial = [f"  {_text(change)} in {having[change]} of {len(differences)} plans" for change in some]
    return (f"{where}: {common or 'not all in the same way'}", *partial)


def _in(settings: Iterable[Setting]) -> str:
    """Nothing where all settings are meant."""
    return "" if set(settings) == set(SETTINGS) else f" ({settings_text(settings)})"


def _short(mean: float) -> str:
    return f"{mean:,.0f}" if mean >= 100 else f"{mean:.3g}"


def _text(change: Change) -> str:
    return "{} {} -> {}".format(*change)


def _changes(old: str, new: str) -> list[Change]:
    """What differs between two plans; of both GEMMs as one, if it is the same change."""
    before, after = _facts(old), _facts(new)
    changed = [
        (key, (before.get(key, "none"), after.get(key, "none")))
        for key in dict.fromkeys([*before, *after])
        if before.get(key, "none") != after.get(key, "none")
    ]
    found: list[Change] = []
    for (stage, name), values in changed:
        other = next((one for one in GEMMS if one != stage), None) if stage else None
        both = other and ((other, name), values) in changed
        change = (name if both or not stage else f"{stage}.{name}", *values)
        if change not in found:
            found.append(change)
    return found


def _facts(plan: str) -> dict[tuple[str, str], str]:
    """(stage, name) -> value. What a line says once of both GEMMs is a fact of each; stage "" is the whole plan's."""
    facts = {}
    for word in plan.split(" "):
        name, value = word.split("=")
        stage, _, own = name.rpartition(".")
        stages = (stage,) if stage else ("",) if name in ("kernel", "launches") else GEMMS
        facts |= {(one, own): value for one in stages}
    return facts


def _missing(word: str, here: list[Cell], there: list[Cell]) -> list[str]:
    """One line for each card and shape of which some cells are `here` alone, and for the settings in which they are."""
    keys, settings = {cell.key for cell in there}, defaultdict(list)
    for cell in here:
        if cell.key not in keys:
            settings[cell.card, cell.shape, cell.tokens].append(cell.setting)
    counts = Counter((card, shape, _in(alone)) for (card, shape, _), alone in settings.items())
    return [f"{word}: {card}, {shape}: {count} plans{where}" for (card, shape, where), count in counts.items()]
