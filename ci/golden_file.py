"""How a file of golden/ is read and written: with suspicion, laid out for short diffs, replaced at once, one at a time.

`check_of` is what shows that a line was edited by hand. It is no signature: it finds a slip, a wrong copy and a merge
that went wrong, not somebody who computes it too. That one is found when an engine computes the digest again.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LINE = 120
LOCK = ".lock"  # beside the files, ignored by git: the kernel frees it when its process ends, however it ends


class Refused(Exception):
    """A request that the rules forbid: what was found, what it should be, and what to do."""


class Damaged(Refused):
    """A file that is not as it was written: `what` is wrong with it."""

    def __init__(self, path: Path, what: str):
        super().__init__(f"{path.name} is not as the tool wrote it: {what}; take it from git again")
        self.what = what


def text(document: dict) -> str:
    """Sorted keys, one blank a level. What holds plain values only is on one line, but of a long list each value."""
    return _laid_out(document) + "\n"


def load(path: Path) -> dict:
    """The document in `path`. Raises Refused for what cannot be read, is no JSON object, or has a name twice in one.

    A merge conflict that was not resolved is no JSON; one from which both lines were kept has a name twice.
    """
    try:
        held = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=lambda pairs: _object(path, pairs))
    except OSError as error:
        raise Refused(f"{path.name} should be a file that can be read: {error}") from error
    except ValueError as error:
        raise Damaged(path, f"it is no JSON: {error}") from error
    if not isinstance(held, dict):
        raise Damaged(path, f"it is a {type(held).__name__}, but should be an object")
    return held


def _object(path: Path, pairs: list[tuple[str, object]]) -> dict:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Damaged(path, f"it has {twice} twice; keep the line that is right")
    return found


def check_of(*parts: object) -> str:
    """16 hexadecimal digits of the SHA-256 of `parts`, which JSON can hold."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def checked(facts: dict, *where: object) -> dict:
    """`facts` with their `check`, which also says `where` they stand, so that no copy of them holds elsewhere."""
    return facts | {"check": check_of(*where, facts)}


def unchecked(path: Path, facts: dict, *where: str) -> dict:
    """What `checked` was given. Raises Refused for other facts, or those of another place."""
    found = {name: value for name, value in facts.items() if name != "check"}
    if facts.get("check") != check_of(*where, found):
        raise Damaged(path, f"{', '.join(where) or 'it'} does not have its check, so somebody edited it")
    return found


def write(path: Path, document: dict) -> None:
    """Replaces `path` at once. Raises Refused for what the schema that `document` names, from there, does not accept.

    What a recorder left that was killed while it wrote goes.
    """
    import jsonschema

    try:
        jsonschema.validate(document, json.loads((path.parent / document["$schema"]).read_text(encoding="utf-8")))
    except jsonschema.ValidationError as error:
        raise Refused(f"{path.name} would break its schema at {error.json_path}: {error.message}") from error
    for left in path.parent.glob(f"{path.name}.*.tmp"):
        left.unlink(missing_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text(document), encoding="utf-8")
    temporary.replace(path)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """While this lasts, no other recorder reads or writes the files of `folder`: what is added to them is not lost."""
    from filelock import FileLock

    with FileLock(folder / LOCK):
        yield


def _laid_out(value: object, margin: str = "\n") -> str:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    line = json.dumps(value, sort_keys=True)
    long_list = isinstance(value, list) and len(line) > LINE
    if not long_list and not any(isinstance(one, dict | list) for one in inner):
        return line
    deeper = margin + " "
    if isinstance(value, dict):
        opening, closing = "{}"
        items = [f"{json.dumps(name)}: {_laid_out(one, deeper)}" for name, one in sorted(value.items())]
    else:
        opening, closing = "[]"
        items = [_laid_out(one, deeper) for one in value]
    return opening + deeper + f",{deeper}".join(items) + margin + closing
