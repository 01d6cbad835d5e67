"""Compiles what a benchmark will launch, on all cores, before it takes a time.

One after another, as they are launched, what nine layers need takes minutes. What cannot be compiled here is compiled
where it is launched first.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context
from threading import Thread

from ..ci.leases import cores
from ..kernels.launch import Launch, compile_only
from ..kernels.plan import LayerPlan

GEMMS = ("gate_up", "down")
LEAST = 8  # so many GEMMs take longer than processes that import torch for them, unless they are in Triton's cache
MOST = 32  # processes, each with a torch of its own


def launches(plans: Iterable[LayerPlan], stages: Iterable[str]) -> list[Launch]:
    """The launches of `plans`, each binary once, without GEMMs of no stage asked for; those that take longest first."""
    found = {}
    for one in (launch for plan in plans for launch in plan.launches):
        if "layer" in stages or one.stage not in GEMMS or one.stage in stages:
            found.setdefault(replace(one, stage="", instruction=None), one)
    return sorted(found.values(), key=_size, reverse=True)


def _size(launch: Launch) -> tuple[bool, int]:
    return launch.stage in GEMMS, dict(launch.constexprs).get("BLOCK_M", 0)


def compile_all(each: list[Launch], say: Callable[[str], None]) -> None:
    """Compiles `each` into Triton's cache, if they are worth it. Says how far it is, and of what it could not why."""
    gemms, start = sum(one.stage in GEMMS for one in each), time.monotonic()
    workers = min(cores(), MOST, gemms)
    if gemms < LEAST or workers < 2:
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin, (os.getpid(),)) as pool:
        running = {pool.submit(_compiled, one): one for one in each}
        try:
            for number, done in enumerate(as_completed(running), 1):
                if why := done.result():
                    say(f"not compiled beforehand: {running[done].label}: {why}")
                if number % 10 == 0 or number == len(each):
                    say(f"[compiling, {number} of {len(each)} launches done, {time.monotonic() - start:.0f} s]")
        except BrokenProcessPool as error:
            say(f"the rest is compiled where it is launched: {error}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _begin(parent: int) -> None:
    """A process ends when it is interrupted, and with its parent, which may be killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _compiled(launch: Launch) -> str:
    """Why not, empty where it was."""
    try:
        compile_only(launch)
    except Exception as error:  # compilers raise anything
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""
