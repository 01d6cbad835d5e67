"""A tree in which the golden tool may record, and engines that are made up. test_work.py has real ones."""

from pathlib import Path

from nvfp4_suite.cases import layers
from nvfp4_suite.ci import exact, recorded
from nvfp4_suite.ci.exact import key
from nvfp4_suite.ci.golden_due import Task
from nvfp4_suite.ci.golden_work import Run
from nvfp4_suite.ci.outcomes import Outcome
from nvfp4_suite.ci.recording import Engine
from nvfp4_suite.kernels import decode
from nvfp4_suite.kernels.variants import VARIANTS

from .processes import CPU as REFERENCE
from .processes import GPU

CASES, REAL = layers.ORDERFREE[:3], layers.RANDOM[:1]
KEYS = [key(case, "w4a16") for case in CASES]
DIGESTS = {name: f"{place:064x}" for place, name in enumerate(KEYS)}
KERNELS = [*VARIANTS, decode.NAME]  # what owes a digest of it
NAME = f"{REAL[0].id}/{KERNELS[0]}/data center"
FULL = f"{REAL[0].id}/{KERNELS[0]}/sm_90/data center/3.8.0"
PLAN = "kernel=prefill_w4a16 launches=8 BLOCK_M=16"
SOURCES, COMMIT = "d" * 64, "c" * 40


class Runs:
    """Stands in for golden_work.runs: each run gives one of `digests`, one after the other, the last again and again.

    Those of real-valued cases, by any kernel, are `real`, as `digests` has no names for them.
    """

    def __init__(self, *digests: dict[str, str], real: str = "e" * 64, plan: str = PLAN):
        self.digests, self.real, self.plan = list(digests), real, plan
        self.calls = 0

    def __call__(self, engine, cases, times, cache=None):
        return [self._run(engine, cases) for _ in range(times)]

    def _run(self, engine, cases) -> Run:
        digests = self.digests[min(self.calls, len(self.digests) - 1)]
        self.calls += 1
        found = Engine("sm_90", "cuda:0", GPU, "data center") if engine == "gpu" else Engine(engine, "cpu", REFERENCE)
        kernel = None if engine == "reference" else "prefill_w4a16"
        of_keys = {Task(c, "w4a16", kernel): Outcome(digests[key(c, "w4a16")]) for c in cases if c in CASES}
        if engine != "gpu":
            return Run(found, of_keys)
        real = [Task(case, "w4a16", name) for case in cases if case in REAL for name in KERNELS]
        return Run(found, of_keys | dict.fromkeys(real, Outcome(self.real, plan=self.plan)))


def digests_in(file) -> dict[str, str]:
    return {name: entry["digest"] for name, entry in exact.read(file).items()}


def recorded_in(file: Path) -> tuple[recorded.Entries, list[dict]]:
    return recorded.read(recorded.path_of(file.parent, "sm_90", "3.8.0"))


def name_of(kernel: str) -> str:
    """A real-valued output's name in golden/recorded/."""
    return f"{REAL[0].id}/{kernel}/data center"
