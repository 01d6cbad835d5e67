"""golden/plans.json as data: what dispatch chooses on cards that nobody here owns, and how it differs from then.

The file holds, for each card and shape, runs of token counts that have one plan, one line a run:
"64 to 256: kernel=prefill_w4a16 launches=8 BLOCK_M=16 ...". Pure: neither torch nor triton.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from ..contract.gpu_names import speed_class
from ..contract.gpus import PORTABLE, Gpu, is_known
from ..contract.shapes import CHECKPOINTS
from ..kernels.launch import Launch
from ..kernels.plan import LayerPlan, plan_layer
from . import golden_file
from .golden_file import Refused

SCHEMA = "plans.schema.json"

# The cards of FreeToken's "pipeline the nvfp4 prefill scale loads", which compares its tables like this, and more: each
# speed class on each architecture that has it, an architecture of the future and no card at all.
CARDS: tuple[Gpu, ...] = (
    Gpu("NVIDIA A100-SXM4-80GB", (8, 0)),
    Gpu("NVIDIA A10", (8, 6)),
    Gpu("NVIDIA GeForce RTX 3080 Ti", (8, 6)),
    Gpu("NVIDIA GeForce RTX 3090", (8, 6)),
    Gpu("NVIDIA RTX A6000", (8, 6)),
    Gpu("Orin", (8, 7)),
    Gpu("NVIDIA GeForce RTX 4090", (8, 9)),
    Gpu("NVIDIA L40", (8, 9)),
    Gpu("NVIDIA L40S", (8, 9)),
    Gpu("NVIDIA RTX 6000 Ada Generation", (8, 9)),
    Gpu("NVIDIA H100 80GB HBM3", (9, 0)),
    Gpu("NVIDIA H200", (9, 0)),
    Gpu("NVIDIA H20", (9, 0)),
    Gpu("a name that nobody knows", (9, 0)),
    Gpu("NVIDIA B200", (10, 0)),
    Gpu("NVIDIA B300", (10, 3)),
    Gpu("NVIDIA Thor", (11, 0)),
    Gpu("NVIDIA GeForce RTX 5090", (12, 0)),
    Gpu("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0)),
    Gpu("NVIDIA GB10", (12, 1)),
    Gpu("a card of the future", (13, 0)),
    Gpu("AMD Instinct MI300X", None, "hip", "gfx942"),
    PORTABLE,
)

# Every power of two that a batch or a prompt may have, and halfway where thresholds are.
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384, 32768)

GEMMS = ("gate_up", "down")


@dataclass(frozen=True)
class Cell:
    """One plan: of which card, its speed class and architecture, for which shape and how many tokens, as one line."""

    card: str
    speed: str
    shape: str
    tokens: int
    plan: str

    @property
    def key(self) -> tuple[str, str, int]:
        return self.card, self.shape, self.tokens


def cells() -> list[Cell]:
    """What dispatch chooses today."""
    return [
        Cell(gpu.name, speed_of(gpu), name, tokens, described(plan_layer(gpu, shape, tokens)))
        for gpu in CARDS
        for name, shape in CHECKPOINTS.items()
        for tokens in TOKENS
    ]


def speed_of(gpu: Gpu) -> str:
    """The speed class and the architecture of `gpu`, which together have one tuning record: "GeForce sm_86"."""
    if not is_known(gpu):
        return "unknown architecture"
    return f"{speed_class(gpu).name} sm_{gpu.capability[0]}{gpu.capability[1]}"


def described(plan: LayerPlan) -> str:
    """The plan in one line: what both GEMMs have in common by its name, what they have not as "down.warps=4"."""
    facts = {stage: _facts(plan.launch(stage)) for stage in GEMMS}
    names = dict.fromkeys(name for stage in GEMMS for name in facts[stage])
    words = [f"kernel={plan.kernel}", f"launches={len(plan.launches)}"]
    for name in names:
        values = [facts[stage].get(name) for stage in GEMMS]
        if values[0] == values[1]:
            words.append(f"{name}={values[0]}")
        else:
            words += [f"{stage}.{name}={value}" for stage, value in zip(GEMMS, values, strict=True)]
    return " ".join(words)


def _facts(launch: Launch) -> dict[str, object]:
    """What dispatch decides of a GEMM; whether it is WEIGHTED is an option's doing."""
    return {
        **{name: value for name, value in launch.constexprs if name != "WEIGHTED"},
        "scale": dict(launch.arguments)["scale"].removeprefix("*"),
        "warps": launch.num_warps,
        "stages": launch.num_stages,
        "instruction": launch.instruction or "none",
    }


def document(found: Iterable[Cell], changes: list[dict]) -> dict:
    """The file that records `found` and, oldest first, the `changes` that led to it."""
    plans: dict[str, dict] = {}
    for (card, speed, shape), of_shape in groupby(found, key=lambda cell: (cell.card, cell.speed, cell.shape)):
        plans.setdefault(card, {"speed": speed, "shapes": {}})["shapes"][shape] = _runs(list(of_shape))
    count = sum(len(runs) for card in plans.values() for runs in card["shapes"].values())
    return {"$schema": SCHEMA, "changes": changes, "count": count, "plans": plans, "tokens": list(TOKENS)}


def _runs(of_shape: list[Cell]) -> list[str]:
    """Neighbouring token counts with one plan are one line."""
    runs = []
    for plan, same in groupby(of_shape, key=lambda cell: cell.plan):
        counts = [cell.tokens for cell in same]
        span = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
        runs.append(f"{span}: {plan}")
    return runs


def read(path: Path) -> tuple[list[Cell], list[dict]]:
    """The cells and the changes of `path`; none where there is no file. Raises Refused where its count is wrong."""
    if not path.exists():
        return [], []
    held = json.loads(path.read_text(encoding="utf-8"))
    found = [
        Cell(card, entry["speed"], shape, tokens, plan)
        for card, entry in held["plans"].items()
        for shape, runs in entry["shapes"].items()
        for run in runs
        for tokens, plan in _unrolled(run, held["tokens"])
    ]
    count = sum(len(runs) for entry in held["plans"].values() for runs in entry["shapes"].values())
    if count != held["count"]:
        raise Refused(f"{path.name} says count {held['count']}, but has {count} runs; only the tool should write it")
    return found, held["changes"]


def _unrolled(run: str, tokens: list[int]) -> list[tuple[int, str]]:
    span, plan = run.split(": ")
    first, last = (int(span.split(" to ")[end]) for end in (0, -1))
    return [(count, plan) for count in tokens if first <= count <= last]


def write(path: Path, found: Iterable[Cell], changes: list[dict]) -> None:
    """Replaces `path` at once. Raises Refused for what its schema, beside it, does not accept."""
    golden_file.write(path, document(found, changes))
