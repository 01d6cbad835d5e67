"""What a golden key is, in words: its case, kernel, plan and tiles, who confirmed it, how it changed, what is near."""

import difflib
from collections.abc import Mapping
from pathlib import Path

from ..cases import layers
from ..contract.case import Case
from ..contract.gpus import PORTABLE, Gpu
from . import codegen, exact, golden_due, plans, recorded
from .golden_record import EXACT
from .outcomes import ON_CPU, Refused
from .program_steps import plan_of
from .recorded import Key

ROUTINGS = {
    "random": "each token to distinct experts",
    "hot": "every token to expert 0 and others",
    "few": "two experts serve all tokens",
    "twice": "each token names one expert twice",
    "dropped": "some ids name no expert",
}
INPUTS = {"orderfree": "sums exact in any order", "random": "like a real layer's"}


def explained(text: str, folder: Path) -> list[str]:
    """All about the key that `text` is, or begins; of several, each in one line. `folder` is golden/.

    Raises Refused where there is none.
    """
    entries, tables = exact.read(folder / EXACT), recorded.tables(folder)
    known = golden_due.known_exact() | entries.keys()
    keys = {name: name for name in known} | {str(key): key for key in tables}
    found = [name for name in sorted(keys) if name.startswith(text)]
    if text in keys:
        found = [text]
    if not found:
        near = difflib.get_close_matches(text, keys, n=3, cutoff=0.4)
        raise Refused(f"KEY is {text!r}, but should be, or begin, one of golden/'s" + "".join(f"\n  {k}" for k in near))
    if len(found) > 1:
        return [_in_short(keys[name], entries, tables) for name in found]
    (name,) = found
    return _recorded(keys[name], tables, folder) if isinstance(keys[name], Key) else _exact(name, entries)


def _in_short(key: str | Key, entries: exact.Entries, tables: Mapping[Key, dict]) -> str:
    entry = tables[key] if isinstance(key, Key) else entries.get(key)
    return f"{entry['digest'][:12] if entry else 'not recorded':12} {key}"


def in_words(case: Case) -> str:
    """ "5 tokens through 4 experts, 2 a token, hidden 48, intermediate 80; ..."."""
    s, options = case.shape, case.options
    quantized = "activations and weights" if case.format == "w4a4" else "weights"
    words = [
        f"{case.tokens} tokens through {s.experts} experts, {s.top_k} a token, hidden {s.hidden}, "
        f"intermediate {s.intermediate}",
        f"{case.routing} routing ({ROUTINGS[case.routing]})",
        f"inputs {INPUTS[case.inputs]}" + (", also where each addition rounds" if case.atomics else ""),
        f"{case.activation} on {case.dtype}, {quantized} in NVFP4",
    ]
    if case.activation == "swigluoai":
        words.append(f"alpha {options['activation_alpha']}, limit {options['activation_limit']}")
    if case.weight_on_input:
        words.append("routing weights on the input")
    return "; ".join(words)


def _case(case_id: str) -> Case | None:
    return next((case for case in layers.ALL if case.id == case_id), None)


def _about(case_id: str) -> str:
    case = _case(case_id)
    return in_words(case) if case else "no case of cases/layers.py any more"


def _exact(name: str, entries: exact.Entries) -> list[str]:
    entry = entries.get(name, {"digest": "not recorded", "confirmed_by": {}, "changes": []})
    case_id, form = name.rsplit("/", 1)
    lines = [name, f"  case       {_about(case_id)}", f"  rounding   as {form} says, on every engine alike"]
    lines += [f"  digest     {entry['digest']}"]
    for engine, facts in sorted(entry["confirmed_by"].items()):
        lines.append(f"  confirmed  by {engine} ({_facts(facts)})")
    lines += [f"  owed       {line}" for line in _owed(name, entry["confirmed_by"])]
    lines += [f"  change     {_change(change)}" for change in entry["changes"]] or ["  changes    none"]
    lines += [f"  plan       {line}" for line in _plans(case_id, form, entry["confirmed_by"])]
    others = [other for other in sorted(entries) if exact.case_id(other) == case_id and other != name]
    return lines + [f"  nearest    {other}: {entries[other]['digest']}" for other in others]


def _owed(name: str, confirmed_by: Mapping[str, dict]) -> list[str]:
    """The engines of every host that have yet to confirm a key, and what is left to GPUs."""
    case, lines = _case(exact.case_id(name)), []
    for engine in ON_CPU if case else ():
        if engine not in confirmed_by and name in {exact.key(*pair) for pair in golden_due.due(engine, (case,))}:
            lines.append(f"by {engine}")
    left = golden_due.LEFT_TO_GPUS.get(exact.case_id(name))
    return lines + ([f"not by the interpreter, which it takes too long: {', '.join(left)}"] if left else [])


def _plans(case_id: str, form: str, confirmed_by: Mapping[str, dict]) -> list[str]:
    """The plans of today for each engine that confirmed a key, and each kernel that owes it there."""
    case, lines = _case(case_id), []
    for engine, facts in sorted(confirmed_by.items()) if case else ():
        if engine == "reference":
            continue
        arch = engine.split(" ")[0]
        gpu = PORTABLE if arch == "interpreter" else gpu_of(facts["device"], arch)
        for kernel in golden_due.kernels_for(arch, case):
            if kernel.promise.orderfree_rounding == form:
                plan = plan_of(kernel.name, case, gpu, facts["triton"].partition("+")[0])
                lines.append(f"{engine}: {plans.described(plan) if plan else f'kernel={kernel.name}'}")
    return lines


def gpu_of(device: str, arch: str) -> Gpu:
    """The GPU that is named `device` and of an architecture like "sm_90"."""
    number = arch.removeprefix("sm_")
    return Gpu(device, (int(number[:-1]), int(number[-1])))


def _recorded(key: Key, tables: Mapping[Key, dict], folder: Path) -> list[str]:
    entry, case = tables[key], _case(key.case)
    facts = {name: value for name, value in entry.items() if name not in ("digest", "plan")}
    lines = [str(key), f"  case       {_about(key.case)}", f"  kernel     {key.kernel}"]
    lines += [f"  card       {key.arch}, {key.speed}, with Triton {key.triton}", f"  digest     {entry['digest']}"]
    lines += [f"  confirmed  by {key.arch} ({_facts(facts)})", f"  plan       {entry['plan']}"]
    if case:
        plan = plan_of(key.kernel, case, gpu_of(entry["device"], key.arch), key.triton)
        today = plans.described(plan) if plan else entry["plan"]
        lines.append(f"  today      {codegen.differences(entry['plan'], today) or 'the same plan'}")
    _, changes = recorded.read(recorded.path_of(folder, key.arch, key.triton))
    mine = [change for change in changes if change["key"] == key.name]
    lines += [f"  change     {_change(change)}; {change['difference']}" for change in mine] or ["  changes    none"]
    near = recorded.nearest(key, tables)
    return lines + ([f"  nearest    {near}: {recorded.against(entry, tables[near])}"] if near else [])


def _facts(facts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(facts.items()))


def _change(change: Mapping[str, str]) -> str:
    return f"{change['old'][:12]} -> {change['new'][:12]} in {change['commit'][:12]}: {change['reason']}"
