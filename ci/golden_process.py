"""A process that computes golden outputs, one at a time, on its own place; its parent outlives whatever it does."""

import os
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection

from . import recording
from .environment import CHOOSES_GPUS
from .golden_due import Task
from .leases import Slot
from .outcomes import Outcome, Refused
from .recording import Engine

SECONDS = 900  # for one output; the longest takes the interpreter about a minute
STARTING = 300  # until a process is ready, on a host that starts many

Start = Callable[[str], Engine]


class Process:
    """Raises Refused where it cannot be started as `engine`. It ends with its parent, however that ends."""

    def __init__(self, engine: str, slot: Slot | None, start: Start):
        context = get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, engine, slot, start), daemon=True)
        self._process.start()
        theirs.close()
        ready = self._answer(STARTING)
        if not isinstance(ready, Engine):
            self.end()
            raise Refused(f"a process of the engine {engine} does not start: {ready}")
        self.engine = ready

    def outcome(self, task: Task, cache: str) -> Outcome:
        """What it makes of `task`, compiling into the folder `cache`; a problem where it dies or does not answer."""
        try:
            self._ours.send((task, cache))
        except OSError:
            return Outcome(problem="its process had died")
        answer = self._answer(SECONDS)
        return answer if isinstance(answer, Outcome) else Outcome(problem=answer)

    def _answer(self, seconds: float) -> object:
        """What it sends, or a sentence where it does not."""
        try:
            return self._ours.recv() if self._ours.poll(seconds) else f"no answer in {seconds} s: a kernel that hangs?"
        except (EOFError, OSError):
            self._process.join()
            return f"its process died, with exit code {self._process.exitcode}"

    def end(self) -> None:
        """It has nothing to do any more. One that hangs, and one after a problem, does not mind being killed."""
        self._ours.close()
        self._process.kill()
        self._process.join()


def _work(theirs: Connection, engine: str, slot: Slot | None, start: Start) -> None:
    """Answers until the other end is closed, which the kernel does when the parent is killed."""
    try:
        lock = slot.hold() if slot else None  # as long as the process lives
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # there are as many processes as cores
        if slot:
            os.environ[CHOOSES_GPUS] = slot.visible.spelling
        ready = start(engine)
    except Exception as error:
        theirs.send(str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}")
        return
    theirs.send(ready)
    while True:
        try:
            task, os.environ["TRITON_CACHE_DIR"] = theirs.recv()
            theirs.send(recording.outcome(ready, task))
        except (EOFError, OSError):
            break
    if lock:
        lock.release()
