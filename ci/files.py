"""Files that are there as a whole or not at all."""

import json
import os
from pathlib import Path


def write_text(path: Path, text: str) -> Path:
    """Replaces `path` at once, in a folder that is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return path


def write_json(path: Path, document: dict) -> Path:
    """`document` as JSON, in the order that it has."""
    return write_text(path, json.dumps(document, indent=2) + "\n")
