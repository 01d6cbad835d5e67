"""What a compiler says in a child process: kept aside, as it floods a terminal, and shown where a gate is red."""

import os
import sys
from pathlib import Path

SHOWN = 2  # lines from the beginning, which has the assertion that failed, and as many from the end


class Said:
    """The text of a file that grows. Without a file there is none."""

    def __init__(self, path: Path | None = None):
        self.path = path

    def length(self) -> int:
        """How long it is now, in bytes."""
        try:
            return self.path.stat().st_size if self.path else 0
        except OSError:
            return 0

    def since(self, start: int) -> str:
        """What came behind the first `start` bytes."""
        try:
            return self.path.read_bytes()[start:].decode(errors="replace") if self.path else ""
        except OSError:
            return ""


SAID = Said()  # of this process


def keep_aside(path: Path) -> None:
    """From here on this process and its children write to `path`, all but Python's own sys.stderr, which stays."""
    SAID.path = path
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    os.close(file)


def excerpt(said: str) -> list[str]:
    """The first and the last lines of it; all, if they are few."""
    lines = [line[:200] for line in said.splitlines() if line.strip()]
    left_out = len(lines) - 2 * SHOWN
    if left_out <= 1:
        return lines
    return [*lines[:SHOWN], f"... {left_out:,} lines ...", *lines[-SHOWN:]]
