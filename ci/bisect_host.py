"""A process that has imported torch and Triton, but no kernels, and forks one for every step of a bisect.

Importing them takes longer than a step. A step's process begins without kernels and without a Triton cache, as any
fresh one does; it can crash or hang without harm, and ends with its children when its time is up or the bisect is gone.
"""

import contextlib
import faulthandler
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

TICK = 0.02  # seconds
DUMP = "dump"  # where in a step's folder faulthandler writes


def main(work: Path, engine: str) -> None:
    """Reads requests from stdin, each a line of JSON, answers each with how its process ended; `work` is the bisect's.

    `engine` is "interpreter", "gpu" or "compiler". stdin that ends means that the bisect has: then `work` is removed,
    as it may have been killed.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no answer
    print(json.dumps(_prepared(engine)), file=answers, flush=True)
    for line in iter(_line, ""):
        print(json.dumps(_ended(json.loads(line), work)), file=answers, flush=True)
    _leave(work)


def _prepared(engine: str) -> dict:
    if engine != "compiler":
        import torch  # noqa: F401
    if engine == "interpreter":
        from . import interpreter  # noqa: F401  (importing it repairs Triton's interpreter)
    import triton

    return {"triton": triton.__version__}


def _line() -> str:
    """A line of stdin, read without a buffer, so that `select` sees what is yet to be read."""
    found = b""
    while not found.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return ""
        found += byte
    return found.decode()


def _ended(request: dict, work: Path) -> dict:
    """Runs a step in a fork: how it ended, None where it did so by itself."""
    child = os.fork()
    if not child:
        _become_step(request)
    end = time.monotonic() + request["seconds"]
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            _end_group(child)
            return {"ended": signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else None}
        if select.select([0], [], [], TICK)[0]:  # nothing is asked meanwhile, so it is the end of stdin
            _end(child)
            _leave(work)
    _end(child)
    return {"ended": "hangs"}


def _end(child: int) -> None:
    _end_group(child)
    os.waitpid(child, 0)


def _end_group(child: int) -> None:
    """Also what a step has started, such as an assembler."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


def _leave(work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    os._exit(0)


def _become_step(request: dict) -> None:
    """Makes this process a step's: its own group, log, caches and temporary files. Does not return."""
    folder = Path(request["folder"])
    os.setsid()
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(log, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    dump = (folder / DUMP).open("w")
    faulthandler.enable(dump)
    faulthandler.dump_traceback_later(max(request["seconds"] - 1, 0.5), file=dump)
    os.environ |= {"TRITON_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder)}
    tempfile.tempdir = str(folder)
    try:
        from .bisect_step import step

        step(request)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
