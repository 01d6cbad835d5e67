"""Kernels compiled once in a session on GPUs: the worker that needs one first compiles it, the others wait and read it.

Each worker with a cache of its own compiled most kernels again: the more workers, the more work. Without a lock, two
that compile one key have left mixed entries. Triton writes the group, by which it finds an entry, after all of its
files; a worker that is killed before has left no entry, and the kernel drops its lock.
"""

from filelock import FileLock, Timeout
from triton import knobs
from triton.runtime.cache import FileCacheManager

PATIENCE = 120  # seconds for another's compilation, then a worker compiles for itself


def start() -> None:
    """From now on, this process shares the folder of TRITON_CACHE_DIR with others that have called this."""
    knobs.cache.manager_class = CompileOnce


class CompileOnce(FileCacheManager):
    """Triton asks it for a group before it compiles, and gives it the group behind. One at a time in a process."""

    _mine: FileLock | None = None  # of what this process is compiling

    def get_group(self, filename: str) -> dict[str, str] | None:
        self.release()
        found = super().get_group(filename)
        if found is None and self._acquire():
            found = super().get_group(filename)  # another has compiled it meanwhile
            if found is not None:
                self.release()
        return found

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        path = super().put_group(filename, group)
        self.release()
        return path

    def _acquire(self) -> bool:
        lock = FileLock(self._make_path("lock"))
        try:
            lock.acquire(timeout=PATIENCE)
        except Timeout:
            return False
        CompileOnce._mine = lock
        return True

    @staticmethod
    def release() -> None:
        """Lets others compile what this process has failed to, if any."""
        if CompileOnce._mine:
            CompileOnce._mine.release()
            CompileOnce._mine = None
