"""How results are written: a file is there whole, or not at all."""

import os
from pathlib import Path


def write(path: Path, text: str) -> None:
    """Replaces `path`, whose folder is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
