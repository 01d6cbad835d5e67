"""What a change made of the binaries: this tree's launches against another revision's, by id."""

from . import codegen, gate_elsewhere, gate_folders, gate_run
from .gate_outcome import Outcome
from .gates import launch_id


def compared(revision: str, triton: str, here: list[Outcome], settings: gate_run.Settings) -> list[str]:
    """How `here`, this tree's outcomes under `triton`, differ from those of the same launches of `revision`.

    Raises NoGates.
    """
    with gate_folders.folder() as directory:
        tree = gate_elsewhere.checked_out(revision, directory)
        ids = {_id(each) for each in here}
        listed = gate_elsewhere.listed(tree, triton)
        before = gate_elsewhere.outcomes(tree, [gate for gate in listed if launch_id(*gate) in ids], settings)
    return explained(revision, before, here)


def explained(revision: str, before: list[Outcome], here: list[Outcome]) -> list[str]:
    """ "same SASS in 40 of 42 launches since REV; 2 differ:", and these, like ones together."""
    old, new = ({_id(each): each for each in some} for some in (before, here))
    neither = {name for name in new if name in old and not (old[name].facts or new[name].facts)}
    both = [name for name in new if name in old and name not in neither]
    same = [name for name in both if _sass(old[name]) == _sass(new[name])]
    groups: dict[str, list[str]] = {}
    for name in both:
        if name not in same:
            groups.setdefault(_difference(old[name], new[name]), []).append(name)
    differ = f"; {len(both) - len(same)} differ:" if groups else ""
    beside = f", {len(neither)} compile in neither" if neither else ""
    lines = [f"same SASS in {len(same)} of {len(both)} launches since {revision}{beside}{differ}"]
    for what, names in groups.items():
        lines += [f"  {what}:", *(f"    {name}" for name in names)]
    added = [name for name in new if name not in old]
    return lines + ([f"{len(added)} launches were not there:", *(f"    {name}" for name in added)] if added else [])


def _id(outcome: Outcome) -> str:
    return launch_id(outcome.capability, outcome.launch)


def _sass(outcome: Outcome) -> str | None:
    return outcome.facts.sass if outcome.facts else None


def _difference(old: Outcome, new: Outcome) -> str:
    if not (old.facts and new.facts):
        return "does not compile any more" if old.facts else "did not compile"
    return codegen.differences(codegen.described(old.facts), codegen.described(new.facts))
