"""Measurements as rows of JSON, in the form of ci/report/bench.py, and the file that holds them. Pure."""

import json
from dataclasses import dataclass
from pathlib import Path

from ..ci.files import write_text
from .measure import Measured
from .points import Layer
from .roofline import Rates, mfu, shares
from .statistics import compare

FILE = "bench.jsonl"


@dataclass(frozen=True)
class Point:
    """Where a measurement was made. `facts`: GPU, Triton, torch, driver and the like, as a row has them."""

    layer: Layer
    tokens: int
    stage: str
    rates: Rates
    facts: dict


def row(point: Point, measured: Measured, baseline: Measured | None, grouped: Measured | None) -> dict:
    """The row of a right measurement; a comparison with itself, with a wrong one or with None is left out."""
    work, seconds = measured.contender.work, measured.milliseconds / 1000
    reached, facts = shares(work, seconds, point.rates), point.facts
    contender = measured.contender
    found = {
        "kernel": contender.label,
        "gpu": facts["gpu"],
        "triton": facts["triton"],
        "shape": point.layer.name,
        "tokens": point.tokens,
        "stage": point.stage,
        "milliseconds": measured.milliseconds,
        "tflops": work.flops / seconds / 1e12 or None,
        "roofline": reached.roofline or None,
        "bound": reached.bound,
        "memory": reached.memory,
        "matrix": reached.matrix,
        "mfu": mfu(work, seconds, facts["gpu"], contender.operand) if point.stage == "layer" else None,
        "error": measured.error,
        "digest": measured.digest,
        "digest_of": "sample" if contender.sampled else "output",
    }
    found |= _compared(measured, baseline) | _over_grouped(measured, grouped)
    found |= {"rounds": len(measured.times), "replayed": measured.replayed, "moved_bytes": work.moved}
    found |= {"cublas_tflops": point.rates.matrix / 1e12, "copy_gbs": point.rates.copy / 1e9}
    found |= vars(point.layer.shape) | {"activation": point.layer.activation}
    return found | dict(contender.facts) | (measured.sensors or {}) | facts


def _compared(measured: Measured, baseline: Measured | None) -> dict:
    """Its time over the baseline's, above 1 is slower."""
    if baseline is None or baseline.wrong or baseline is measured:
        return {}
    found = compare(measured.times, baseline.times)
    interval = {"ratio_low": found.low, "ratio_high": found.high, "noise": found.noise, "verdict": found.word}
    return {"baseline": baseline.contender.label, "ratio": found.ratio} | interval


def _over_grouped(measured: Measured, grouped: Measured | None) -> dict:
    """How many times as fast as torch._grouped_mm."""
    if grouped is None or grouped.wrong or grouped is measured:
        return {}
    found = compare(grouped.times, measured.times)
    return {"over_grouped": found.ratio, "over_grouped_low": found.low, "over_grouped_high": found.high}


def write(folder: Path, rows: list[dict]) -> Path:
    """All rows as FOLDER/bench.jsonl, whole or not at all."""
    return write_text(folder / FILE, "".join(json.dumps(one) + "\n" for one in rows))
