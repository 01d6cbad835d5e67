"""golden/codegen/ as data: what each Triton and assembler made of each launch, one line each.

One file a Triton. By assembler and by "sm_90-gate_up-...", the id of a launch on an architecture, the facts by name;
here they are a line such as "instructions=wgmma.m64n128k16.f32.bf16.bf16 registers=152 shared=53504 ...". Pure.
"""

from dataclasses import fields
from pathlib import Path

from . import golden_file
from .gate_facts import Facts
from .golden_file import Damaged, Refused

SCHEMA = "codegen.schema.json"
_ELSEWHERE = ("triton", "assembler", "head", "cubin_bytes")  # the key, how it came about, and debug lines' size

Lines = dict[tuple[str, str], str]  # (assembler, id of the launch): what was made of it


def described(facts: Facts) -> str:
    """The facts in one line, by name; those that are 0 or none are left out."""
    values = {
        field.name.removesuffix("_bytes"): getattr(facts, field.name)
        for field in fields(Facts)
        if field.name not in _ELSEWHERE
    }
    return _line({name: _shown(value) for name, value in values.items() if value})


def _line(words: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(words.items()))


def _words(line: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in line.split(" "))


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(each.replace(" ", ".") for each in value)
    return str(value)


def differences(before: str, now: str) -> str:
    """What differs between two lines: "registers 152 -> 168, sass". Digests are named only."""
    old, new = _words(before), _words(now)
    found = []
    for name in dict.fromkeys([*new, *old]):
        if old.get(name) != new.get(name):
            digest = name in ("ptx", "sass")
            found.append(name if digest else f"{name} {old.get(name, 'none')} -> {new.get(name, 'none')}")
    return ", ".join(sorted(found, key=lambda word: word in ("ptx", "sass")))


def read(path: Path) -> tuple[Lines, list[dict]]:
    """The lines and the changes of `path`; none where there is no file.

    Raises Refused for what cannot be read, was edited, is cut short or is of another Triton than the file's name says.
    """
    if not path.exists():
        return {}, []
    held = golden_file.load(path)
    try:
        launches = {tool: lines.items() for tool, lines in held["assemblers"].items()}
        found = {(tool, name): _line(words) for tool, lines in launches.items() for name, words in lines}
        triton, count, check, changes = held["triton"], held["count"], held["check"], held["changes"]
    except (AttributeError, KeyError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else "its launches are no objects"
        raise Damaged(path, what) from error
    if triton != path.stem:
        raise Damaged(path, f"it is of Triton {triton}")
    if len(found) != count:
        raise Damaged(path, f"it says count {count}, but has {len(found)} launches")
    if check != golden_file.check_of(triton, held["assemblers"], changes):
        raise Damaged(path, "what it says does not have its check, so somebody edited it")
    return found, changes


def document(triton: str, lines: Lines, changes: list[dict]) -> dict:
    """The file that records `lines` and, oldest first, the `changes` that led to them; its `check` shows a slip."""
    assemblers: dict[str, dict[str, dict[str, str]]] = {}
    for (tool, name), line in lines.items():
        assemblers.setdefault(tool, {})[name] = _words(line)
    check = golden_file.check_of(triton, assemblers, changes)
    held = {"assemblers": assemblers, "changes": changes, "check": check, "count": len(lines), "triton": triton}
    return {"$schema": SCHEMA} | held


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

    Raises Refused where recorded lines change without a reason. One is kept with new lines, too, but not demanded.
    """
    difference = sorted(f"{name}: {what}" for (_, name), what in changed(recorded, found).items())
    if difference and not (reason or "").strip():
        raise Refused("what is recorded changes only with --reason TEXT:\n" + "\n".join(difference))
    if new := len(found.keys() - recorded.keys()):
        difference.append(f"{new} launches for the first time")
    kept = {key: line for key, line in recorded.items() if key[1] in known}
    entry = [{"commit": commit, "difference": difference, "reason": reason}] if difference and reason else []
    return kept | found, [*changes, *entry]
