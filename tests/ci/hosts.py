"""Hosts that are not there: what NVML would say of them."""

import json
from pathlib import Path

GIB = 2**30
H200 = {"name": "NVIDIA H200", "capability": [9, 0], "total": 140 * GIB}
L40S = {"name": "NVIDIA L40S", "capability": [8, 9], "total": 45 * GIB}
FAKES = Path(__file__).parent / "fake_host"


def cards(*gpus: dict, **more: dict) -> list[dict]:
    """A host with these GPUs, whose UUIDs begin GPU-0, GPU-1 and so on."""
    return [{"uuid": f"GPU-{place}{place}{place}{place}-5a5a", **gpu, **more} for place, gpu in enumerate(gpus)]


def mig(name: str = "NVIDIA A100-SXM4-80GB MIG 1g.10gb", count: int = 2) -> dict:
    """An A100 that is split into so many instances."""
    ones = [{"uuid": f"MIG-{letter * 4}-5a5a", "name": name, "total": 10 * GIB} for letter in "abcdefg"[:count]]
    return {"name": "NVIDIA A100-SXM4-80GB", "capability": [8, 0], "mig": ones}


HOSTS = {
    "one": cards(H200),
    "two": cards(H200, H200),
    "eight": cards(*[H200] * 8),
    "mixed": cards(H200, L40S, L40S),
    "split": cards(mig(), H200),
}


def write(path: Path, host: list[dict]) -> Path:
    """The file that the variable FAKE_HOST names."""
    path.write_text(json.dumps(host))
    return path
