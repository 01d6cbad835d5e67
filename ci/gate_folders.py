"""Folders for a while: gone after their use, and those that a killed run left are gone after the next.

Whoever uses a folder holds its lock, which ends with the process at the latest: what nobody holds was left behind.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "nvfp4-gate-"


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A new folder among the temporary files, removed afterwards with all that is in it."""
    path, lock = _made()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def remove_left_over() -> None:
    """Removes the folders that nobody uses any more; one that cannot be removed stays."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), _opened(path) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)


def _made() -> tuple[Path, int]:
    """A folder and the descriptor that locks it. Another run may take one that is not locked yet for left over."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                return path, lock
            os.close(lock)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
