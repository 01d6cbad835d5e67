"""Compiles what a benchmark will launch, on all cores, before it takes a time.

One after another, as they are launched, what nine layers need takes minutes. What cannot be compiled here is compiled
where it is launched first.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import as_completed

from ..ci.gate_run import Children
from ..ci.gate_work import length
from ..ci.leases import cores
from ..ci.plans import GEMMS
from ..kernels.launch import Launch, compile_only
from ..kernels.plan import LayerPlan

LEAST = 8  # so many GEMMs take longer than processes that import torch for them, unless they are in Triton's cache
MOST = 32  # processes, each with a torch of its own


def launches(plans: Iterable[LayerPlan], stages: Iterable[str]) -> list[Launch]:
    """The launches of `plans`, each binary once, without GEMMs of no stage asked for; those that take longest first."""
    found = {}
    for one in (launch for plan in plans for launch in plan.launches):
        if "layer" in stages or one.stage not in GEMMS or one.stage in stages:
            found.setdefault(one.binary, one)
    return sorted(found.values(), key=length, reverse=True)


def compile_all(each: list[Launch], say: Callable[[str], None]) -> None:
    """Compiles `each` into Triton's cache, if they are worth it. Says how far it is, and of what it could not why."""
    gemms, start = sum(one.stage in GEMMS for one in each), time.monotonic()
    workers = min(cores(), MOST, gemms)
    if gemms < LEAST or workers < 2:
        return
    children = Children(workers)
    try:
        running = {children.submit(children.call, one.label, _compiled, one): one for one in each}
        for number, done in enumerate(as_completed(running), 1):
            if why := done.exception() or done.result():
                say(f"not compiled beforehand: {running[done].label}: {why}")
            if number % 10 == 0 or number == len(each):
                say(f"[compiling, {number} of {len(each)} launches done, {time.monotonic() - start:.0f} s]")
    finally:
        children.close()


def _compiled(launch: Launch) -> str:
    """Why not, empty where it was: not every compiler's exception can be sent."""
    try:
        compile_only(launch)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""
