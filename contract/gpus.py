"""Facts about GPUs, by compute capability and by name. Pure: neither torch nor triton is imported at module level."""

import difflib
import re
from dataclasses import dataclass

from .checks import whole


@dataclass(frozen=True)
class Gpu:
    """One GPU as dispatch sees it: capability decides what is possible, the name only chooses a speed class.

    `capability` is (major, minor); None stands for no particular GPU, the portable class. `arch` is a HIP name such as
    "gfx942" when `backend` is "hip". Raises TypeError or ValueError, naming the field.
    """

    name: str
    capability: tuple[int, int] | None
    backend: str = "cuda"
    arch: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"name is {self.name!r}, but should be a str")
        if self.capability is not None:
            if not isinstance(self.capability, tuple) or len(self.capability) != 2:
                raise TypeError(f"capability is {self.capability!r}, but should be (major, minor) or None")
            for number in self.capability:
                whole("capability's number", number, least=0)
        if self.backend not in ("cuda", "hip"):
            raise ValueError(f'backend is {self.backend!r}, but should be "cuda" or "hip"')
        if (self.backend == "hip") != (self.arch is not None):
            raise ValueError(f"arch is {self.arch!r}, but goes with backend 'hip' and only with it")


@dataclass(frozen=True)
class Architecture:
    """What every GPU of one compute capability has in common.

    `shared_memory` is the opt-in limit per block in bytes (CUDA C++ Programming Guide, technical specifications per
    compute capability). `matrix_instruction` is what Triton makes of a 16-bit `tl.dot` there.
    """

    shared_memory: int
    native_e4m3: bool
    native_fp4: bool
    matrix_instruction: str


ARCHITECTURES: dict[tuple[int, int], Architecture] = {
    (8, 0): Architecture(166_912, native_e4m3=False, native_fp4=False, matrix_instruction="mma.sync"),
    (8, 6): Architecture(101_376, native_e4m3=False, native_fp4=False, matrix_instruction="mma.sync"),
    (8, 7): Architecture(166_912, native_e4m3=False, native_fp4=False, matrix_instruction="mma.sync"),
    (8, 9): Architecture(101_376, native_e4m3=True, native_fp4=False, matrix_instruction="mma.sync"),
    (9, 0): Architecture(232_448, native_e4m3=True, native_fp4=False, matrix_instruction="wgmma"),
    (10, 0): Architecture(232_448, native_e4m3=True, native_fp4=True, matrix_instruction="tcgen05"),
    (10, 3): Architecture(232_448, native_e4m3=True, native_fp4=True, matrix_instruction="tcgen05"),
    (11, 0): Architecture(232_448, native_e4m3=True, native_fp4=True, matrix_instruction="tcgen05"),  # unconfirmed
    (12, 0): Architecture(101_376, native_e4m3=True, native_fp4=True, matrix_instruction="mma.sync"),
    (12, 1): Architecture(101_376, native_e4m3=True, native_fp4=True, matrix_instruction="mma.sync"),
}

# What a GPU that the table does not know is trusted with: the least of every entry.
PORTABLE_ARCHITECTURE = Architecture(101_376, native_e4m3=False, native_fp4=False, matrix_instruction="mma.sync")

PORTABLE = Gpu("portable", None)

CATALOG: tuple[Gpu, ...] = (
    Gpu("NVIDIA A100-SXM4-80GB", (8, 0)),
    Gpu("NVIDIA GeForce RTX 3080 Ti", (8, 6)),
    Gpu("NVIDIA GeForce RTX 3090", (8, 6)),
    Gpu("NVIDIA RTX A6000", (8, 6)),
    Gpu("Orin", (8, 7)),
    Gpu("NVIDIA GeForce RTX 4090", (8, 9)),
    Gpu("NVIDIA RTX 6000 Ada Generation", (8, 9)),
    Gpu("NVIDIA L40", (8, 9)),
    Gpu("NVIDIA L40S", (8, 9)),
    Gpu("NVIDIA H100 80GB HBM3", (9, 0)),
    Gpu("NVIDIA H200", (9, 0)),
    Gpu("NVIDIA H20", (9, 0)),
    Gpu("NVIDIA B200", (10, 0)),
    Gpu("NVIDIA B300", (10, 3)),
    Gpu("NVIDIA Thor", (11, 0)),
    Gpu("NVIDIA GeForce RTX 5090", (12, 0)),
    Gpu("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0)),
    Gpu("NVIDIA GB10", (12, 1)),
)


def named(text: str) -> Gpu:
    """The card of the catalog that `text` names, in whole or in part, in any case.

    Of several that contain it, one that has it as whole words is meant ("H20"). Raises ValueError where none or several
    are left, and says which are near.
    """
    having = [gpu for gpu in CATALOG if text.lower() in gpu.name.lower()]
    words = [gpu for gpu in having if re.search(rf"(?<!\w){re.escape(text)}(?!\w)", gpu.name, re.IGNORECASE)]
    exact = [gpu for gpu in words if text.lower() == gpu.name.lower()]
    found = exact or words or having
    if len(found) == 1 and text.strip():
        return found[0]
    near = found if found and text.strip() else _nearest(text)
    what = "names several cards" if found and text.strip() else "is no card of the catalog"
    raise ValueError(f"the GPU {text!r} {what}, but should name one: {', '.join(gpu.name for gpu in near)}")


def _nearest(text: str) -> tuple[Gpu, ...]:
    """The cards whose names are likest to `text`, all where none is like it."""
    names = {gpu.name.lower().removeprefix("nvidia "): gpu for gpu in CATALOG}
    likest = difflib.get_close_matches(text.lower().removeprefix("nvidia "), names, n=3, cutoff=0.5)
    return tuple(names[name] for name in likest) or CATALOG


def is_known(gpu: Gpu) -> bool:
    """Whether there are facts about `gpu`'s architecture."""
    return gpu.backend == "cuda" and gpu.capability in ARCHITECTURES


def architecture(gpu: Gpu) -> Architecture:
    """The facts of `gpu`'s capability; an unknown one and other vendors get the portable facts."""
    return ARCHITECTURES[gpu.capability] if is_known(gpu) else PORTABLE_ARCHITECTURE


def current(index: int) -> Gpu:
    """The GPU that this process sees under `index`. Never cached: a process may hold cards of several kinds."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip:
        return Gpu(properties.name, None, "hip", properties.gcnArchName.split(":")[0])
    return Gpu(properties.name, (properties.major, properties.minor))
