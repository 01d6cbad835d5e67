"""What is timed, as it is asked for: a kernel by name, perhaps with a tile, of today's kernels/ or another's."""

import re
from dataclasses import dataclass, field, fields, replace

from ..contract.gpus import Gpu
from ..contract.kernel import Kernel
from .points import Layer
from .revisions import TODAY, Kernels

PLANNED = {"auto": False, "prefill": False, "decode": False, "w4a4": True}  # names of plans; whether W4A4 is meant
_LETTERS = {"m": "block_m", "n": "block_n", "kb": "block_kb", "w": "num_warps", "s": "num_stages"}


@dataclass(frozen=True)
class Subject:
    """`name`: auto, prefill, decode, w4a4, or a kernel of the registry. `tile`: Tile's fields; () is as planned."""

    name: str
    tile: tuple[tuple[str, int], ...] = ()
    kernels: Kernels = field(default=TODAY)

    @property
    def label(self) -> str:
        """As it is asked for, the source of other kernels behind it."""
        return with_tile(self.name, self.tile) + (f" at {self.kernels.source}" if self.kernels.source else "")


@dataclass(frozen=True)
class Chosen:
    """What a subject is on one GPU, layer and number of tokens. `plan` is None for a kernel that plan_layer lacks."""

    subject: Subject
    kernel: Kernel
    plan: object | None

    @property
    def w4a4(self) -> bool:
        return "w4a4" in self.kernel.promise.formats

    @property
    def operand(self) -> str:
        """What its matrix instructions multiply, "bf16" or "fp4": the peak that MFU is against."""
        launch = self.plan.launch("gate_up") if self.plan else None
        return "fp4" if launch and "mxf4" in (launch.instruction or "") else "bf16"


def parse(text: str, kernels: Kernels = TODAY) -> Subject:
    """NAME or NAME@m64,n64,kb32,w4,s3, whose missing parts are Tile's own. Raises ValueError for another form."""
    name, at, tile = text.partition("@")
    known = [*PLANNED, *kernels.registry.KERNELS]
    if name not in known:
        raise ValueError(f"the kernel is {name!r}, but should be one of {', '.join(known)}")
    if not at:
        return Subject(name, (), kernels)
    found = [re.fullmatch(r"([a-z]+)(\d+)", part) for part in tile.split(",")]
    if not all(one and one[1] in _LETTERS for one in found) or "m" not in [one[1] for one in found]:
        raise ValueError(f"the tile is {tile!r}, but should read m64,n64,kb32,w4,s3; only m must be there")
    made = kernels.tiles.Tile(**{_LETTERS[one[1]]: int(one[2]) for one in found})
    return Subject(name, tuple((one.name, getattr(made, one.name)) for one in fields(made)), kernels)


def with_tile(name: str, tile: tuple[tuple[str, int], ...]) -> str:
    letters = {field: letter for letter, field in _LETTERS.items()}
    return name + ("@" + ",".join(f"{letters[field]}{value}" for field, value in tile) if tile else "")


def choose(subject: Subject, gpu: Gpu, layer: Layer, tokens: int, release: str) -> Chosen:
    """The kernel and the plan that `subject` is there.

    Raises ValueError where it does not run on `gpu`, does not take the layer's activation, or has no such tile.
    """
    made, registry = subject.kernels.plan, subject.kernels.registry.KERNELS
    kernel = registry.get(subject.name)
    w4a4 = "w4a4" in kernel.promise.formats if kernel else PLANNED[subject.name]
    plan = None
    if kernel is None or subject.name in made.KERNELS:
        tile = subject.kernels.tiles.Tile(**dict(subject.tile)) if subject.tile else None
        options = {"triton": release, "activation": layer.activation, "kernel": subject.name, "override": tile}
        plan = made.plan_layer(gpu, layer.shape, tokens, input_scales=w4a4, **options)
        kernel = registry[plan.kernel]
    elif subject.tile:
        raise ValueError(f"the kernel is {subject.label}, but {subject.name} has no plan, so that it takes no tile")
    promise = kernel.promise
    if promise.capabilities is not None and gpu.capability not in promise.capabilities:
        raise ValueError(f"the kernel is {subject.label}, but {kernel.name} does not run on {gpu.name}")
    if layer.activation not in promise.activations:
        raise ValueError(f"the kernel is {subject.label}, but {kernel.name} does not take {layer.activation}")
    return Chosen(subject, kernel, plan)


def with_tile_of(subject: Subject, tile: object) -> Subject:
    """`subject` with the Tile `tile` in place of what is planned."""
    return replace(subject, tile=tuple((one.name, getattr(tile, one.name)) for one in fields(tile)))
