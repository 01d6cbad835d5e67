"""Rows of a benchmark, as bench/rows.py writes them: JSON lines, one measurement each. Pure.

{"kernel": "prefill_w4a16", "gpu": "NVIDIA H200", "triton": "3.8.0", "shape": "GLM-4.7", "tokens": 4096,
 "milliseconds": 1.234, "baseline": "recorded at 2b238f9", "ratio": 1.02, "roofline": 0.71, "digest": "6f6d..."}
"""

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path

TEXTS = ("kernel", "gpu", "triton", "shape", "stage", "baseline", "verdict", "digest")  # the others are numbers
MAY_BE_ZERO = ("noise", "error")


@dataclass(frozen=True)
class Row:
    """One measurement; what is None was not measured. A row may have more keys than these.

    `milliseconds` of one run of a layer, or of its `stage`: "gate_up", "down" and others; None and "layer" are the
    whole. `baseline` names what `ratio` compares with, a recorded run or another kernel: this one's time over that
    one's, so that above 1 is slower; `noise` is what it may be off by, as a share of it, and `verdict` a word for it.
    `roofline`: which share of the GPU's roofline this is. `tflops` are useful ones; `mfu` is the share of the
    card's dense peak; `error` is relative to the reference. `digest`: of the output that was timed, as in
    golden/exact.json.
    """

    kernel: str
    gpu: str
    triton: str
    shape: str
    tokens: float
    milliseconds: float
    baseline: str | None = None
    ratio: float | None = None
    roofline: float | None = None
    digest: str | None = None
    stage: str | None = None
    tflops: float | None = None
    mfu: float | None = None
    error: float | None = None
    noise: float | None = None
    verdict: str | None = None

    @classmethod
    def of(cls, plain: object) -> "Row":
        """Raises ValueError, naming the key, for a missing one and for a value of another type or without sense."""
        if not isinstance(plain, dict):
            raise ValueError(f"it is a {type(plain).__name__}, but should be an object")
        return cls(**{one.name: _checked(one.name, plain.get(one.name), one.default is None) for one in fields(cls)})


def _checked(name: str, value: object, optional: bool):
    if value is None and optional:
        return None
    if name in TEXTS:
        good, should = isinstance(value, str), "a text"
    else:
        number, zero = type(value) in (int, float) and math.isfinite(value), name in MAY_BE_ZERO
        good = number and (value > 0 or (zero and value == 0))
        should = "a number of at least 0" if zero else "a number above 0"
    if not good:
        raise ValueError(f"{name} is {value!r:.80}, but should be {should}")
    return value


def read(path: Path) -> tuple[list[Row], list[tuple[int, str]]]:
    """The rows of the file at `path`, and (line, why) of each line that holds none."""
    rows, problems = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            rows.append(Row.of(json.loads(line)))
        except (ValueError, RecursionError) as error:
            problems.append((number, str(error)))
    return rows, problems
