"""golden/codegen/ as data: what each Triton and assembler made of each launch, one line each.

One file a Triton. By assembler and by "sm_90-gate_up-...", the id of a launch on an architecture, a line such as
"ptx=... sass=... instructions=wgmma.m64n128k16.f32.bf16.bf16 shared=53,504 registers=152 ...". Pure.
"""

from dataclasses import fields
from pathlib import Path

from . import golden_file
from .gate_facts import Facts
from .golden_file import Refused

SCHEMA = "codegen.schema.json"
_ELSEWHERE = ("triton", "assembler", "head", "cubin_bytes")  # the key, how it came about, and debug lines' size

Lines = dict[tuple[str, str], str]  # (assembler, id of the launch): what was made of it


def described(facts: Facts) -> str:
    """The facts in one line; those that are 0 or none are left out."""
    values = {
        field.name.removesuffix("_bytes"): getattr(facts, field.name)
        for field in fields(Facts)
        if field.name not in _ELSEWHERE
    }
    return " ".join(f"{name}={_shown(value)}" for name, value in values.items() if value)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(each.replace(" ", ".") for each in value)
    return str(value)


def differences(before: str, now: str) -> str:
    """What differs between two lines: "registers 152 -> 168, sass". Digests are named only."""
    old, new = (dict(word.split("=", 1) for word in line.split(" ")) for line in (before, now))
    found = []
    for name in dict.fromkeys([*new, *old]):
        if old.get(name) != new.get(name):
            digest = name in ("ptx", "sass")
            found.append(name if digest else f"{name} {old.get(name, 'none')} -> {new.get(name, 'none')}")
    return ", ".join(sorted(found, key=lambda word: word in ("ptx", "sass")))


def read(path: Path) -> tuple[Lines, list[dict]]:
    """The lines and the changes of `path`; none where there is no file. Raises Refused where its count is wrong."""
    if not path.exists():
        return {}, []
    held = golden_file.load(path)
    found = {(tool, name): line for tool, lines in held["assemblers"].items() for name, line in lines.items()}
    if len(found) != held["count"]:
        raise Refused(f"{path.name} says count {held['count']}, but has {len(found)}; only the tool should write it")
    return found, held["changes"]


def document(triton: str, lines: Lines, changes: list[dict]) -> dict:
    """The file that records `lines` and, oldest first, the `changes` that led to them."""
    assemblers: dict[str, dict[str, str]] = {}
    for (tool, name), line in lines.items():
        assemblers.setdefault(tool, {})[name] = line
    return {"$schema": SCHEMA, "assemblers": assemblers, "changes": changes, "count": len(lines), "triton": triton}


def write(path: Path, triton: str, lines: Lines, changes: list[dict]) -> None:
    """Replaces `path` at once. Raises Refused for what its schema, beside it, does not accept."""
    golden_file.write(path, document(triton, lines, changes))


def changed(recorded: Lines, found: Lines) -> dict[tuple[str, str], str]:
    """What differs, by key, of that which is in both."""
    both = found.keys() & recorded.keys()
    return {key: differences(recorded[key], found[key]) for key in both if recorded[key] != found[key]}


def merged(
    recorded: Lines, found: Lines, changes: list[dict], *, known: set[str], commit: str, reason: str | None
) -> tuple[Lines, list[dict]]:
    """The lines and changes to write; what is not among the ids `known` is no launch any more, and goes.

    Raises Refused where recorded lines change without a reason, or none does and there is one.
    """
    difference = sorted(f"{name}: {what}" for (_, name), what in changed(recorded, found).items())
    if difference and not (reason or "").strip():
        raise Refused("what is recorded changes only with --reason TEXT:\n" + "\n".join(difference))
    if reason is not None and not difference:
        raise Refused(f"--reason is {reason!r}, but should be given only where a recorded line changes")
    kept = {key: line for key, line in recorded.items() if key[1] in known}
    entry = [{"commit": commit, "difference": difference, "reason": reason}] if difference else []
    return kept | found, [*changes, *entry]
