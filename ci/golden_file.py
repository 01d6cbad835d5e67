"""How a file of golden/ is written: laid out for short diffs, checked against its schema, replaced at once."""

import json
import os
from pathlib import Path

LINE = 120


class Refused(Exception):
    """A request that the rules forbid: what was found, what it should be, and what to do."""


def text(document: dict) -> str:
    """Sorted keys, one blank a level. What holds plain values only is on one line, but of a long list each value."""
    return _laid_out(document) + "\n"


def write(path: Path, document: dict) -> None:
    """Replaces `path` at once. Raises Refused for what the schema that `document` names, beside it, does not accept."""
    import jsonschema

    try:
        jsonschema.validate(document, json.loads(path.with_name(document["$schema"]).read_text(encoding="utf-8")))
    except jsonschema.ValidationError as error:
        raise Refused(f"{path.name} would break its schema at {error.json_path}: {error.message}") from error
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text(document), encoding="utf-8")
    temporary.replace(path)


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
