"""What dispatch chooses on cards that nobody here owns: what golden/plans.json records. Pure: neither torch nor triton.

See plans_file.py for the file, and plans_diff.py for how two such tables differ.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..contract.gpu_names import speed_class
from ..contract.gpus import PORTABLE, Gpu, is_known
from ..contract.shapes import CHECKPOINTS, LayerShape
from ..kernels.launch import Launch
from ..kernels.plan import LayerPlan, plan_layer
from ..kernels.releases import NO_ASSEMBLER, TRITONS

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


class Setting(NamedTuple):
    """What a plan depends on beside card and layer: whether the banks have input scales, and the Triton release."""

    input_scales: bool
    triton: str


SETTINGS = tuple(Setting(scales, triton) for scales in (False, True) for triton in TRITONS)
REFUSED = "kernel=refused"  # the plan of a card that the release cannot compile for


@dataclass(frozen=True)
class Cell:
    """One plan as a line: of which card, its class and architecture, under which setting, of which shape and tokens."""

    card: str
    speed: str
    setting: Setting
    shape: str
    tokens: int
    plan: str

    @property
    def key(self) -> tuple[str, Setting, str, int]:
        return self.card, self.setting, self.shape, self.tokens


def cells(cards: Iterable[Gpu] = CARDS) -> list[Cell]:
    """What dispatch chooses today. Raises ValueError for two cards of one name, which a table could not tell apart."""
    cards = tuple(cards)
    if len({gpu.name for gpu in cards}) < len(cards):
        raise ValueError(f"cards are {', '.join(gpu.name for gpu in cards)}, but each should have a name of its own")
    return [
        Cell(gpu.name, speed_of(gpu), setting, name, tokens, _planned(gpu, setting, shape, tokens))
        for gpu in cards
        for setting in SETTINGS
        for name, shape in CHECKPOINTS.items()
        for tokens in TOKENS
    ]


def _planned(gpu: Gpu, setting: Setting, shape: LayerShape, tokens: int) -> str:
    if setting.triton in NO_ASSEMBLER.get(gpu.capability, ()):
        return REFUSED
    return described(plan_layer(gpu, shape, tokens, triton=setting.triton, input_scales=setting.input_scales))


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
            each = zip(GEMMS, values, strict=True)
            words += [f"{stage}.{name}={value}" for stage, value in each if value is not None]
    return " ".join(words)


def _facts(launch: Launch) -> dict[str, object]:
    """What dispatch decides of a GEMM; whether it is WEIGHTED, and its ACTIVATION, are options' doing."""
    return {
        **{name: value for name, value in launch.constexprs if name not in ("WEIGHTED", "ACTIVATION")},
        "scale": dict(launch.arguments)["scale"].removeprefix("*"),
        "warps": launch.num_warps,
        "stages": launch.num_stages,
        "instruction": (launch.instruction or "none").replace(" ", "."),
    }
