"""Compiles what a benchmark will launch, on all cores, before it takes a time.

One after another, as they are launched, what nine layers need takes minutes (58 launches for sm_90: 500 s of one core).
What cannot be compiled here is compiled where it is launched first.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context

from ..ci.leases import cores
from ..kernels.launch import Launch, compile_only
from ..kernels.plan import LayerPlan

GEMMS = ("gate_up", "down")
LEAST = 8  # so many GEMMs take longer than processes that import torch for them


def launches(plans: Iterable[LayerPlan], stages: Iterable[str]) -> list[Launch]:
    """What `plans` launch for `stages`, each binary once, those that take longest first."""
    found = {}
    for one in (launch for plan in plans for launch in plan.launches):
        if "layer" in stages or one.stage not in GEMMS or one.stage in stages:
            found.setdefault(replace(one, stage="", instruction=None), one)
    return sorted(found.values(), key=_size, reverse=True)


def _size(launch: Launch) -> tuple[bool, int]:
    return launch.stage in GEMMS, dict(launch.constexprs).get("BLOCK_M", 0)


def compile_all(each: list[Launch], say: Callable[[str], None]) -> None:
    """Compiles `each` into Triton's cache, if they are worth it. Says how far it is, and of what it could not why."""
    if sum(one.stage in GEMMS for one in each) < LEAST:
        return
    start, workers = time.monotonic(), min(cores(), len(each))
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        running = {pool.submit(_compiled, one): one for one in each}
        for number, done in enumerate(as_completed(running), 1):
            if why := done.exception() or done.result():
                say(f"not compiled beforehand: {running[done].label}: {why}")
            say(f"[compiled {number} of {len(each)}, {time.monotonic() - start:.0f} s]")


def _compiled(launch: Launch) -> str:
    """Why not, empty where it was."""
    try:
        compile_only(launch)
    except Exception as error:  # compilers raise anything
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""
