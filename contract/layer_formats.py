"""What each layer of a checkpoint holds, from keys and headers alone."""

from dataclasses import dataclass
from pathlib import Path

from .checkpoint_layer import Layer, examine, index_of


@dataclass(frozen=True)
class LayerFormat:
    """One layer's routed experts: "nvfp4", "bf16" or "fp16", of which exporter, fused or not.

    `problem` is what load_layer would say of a layer that it cannot read; then the other fields say nothing.
    """

    kind: str | None = None
    experts: int = 0
    hidden: int = 0
    intermediate: int = 0
    input_scales: bool = False
    fused: bool = False
    dialects: tuple[str, ...] = ()
    problem: str | None = None

    def __str__(self) -> str:
        if self.problem:
            return f"cannot be read: {self.problem}"
        scales = ("", " with input scales")[self.input_scales]
        written = f", {' and '.join(self.dialects)}" if self.dialects else ""
        shape = f"{self.experts} experts, hidden {self.hidden}, intermediate {self.intermediate}"
        return f"{self.kind}{scales}: {shape}{written}{', fused' if self.fused else ''}"


def describe(path: str | Path) -> dict[int, LayerFormat]:
    """The format of every layer that has routed experts, in order; `path` is what load_layer takes.

    Raises FileNotFoundError and ValueError where there is no checkpoint; a layer that cannot be read is one with a
    `problem`.
    """
    index, formats = index_of(path), {}
    for layer in index.layers:
        try:
            formats[layer] = _format(examine(index, layer))
        except (KeyError, TypeError, ValueError, FileNotFoundError) as error:
            text = error.args[0] if isinstance(error, KeyError) else str(error)
            formats[layer] = LayerFormat(problem=text)
    return formats


def _format(layer: Layer) -> LayerFormat:
    dialects = tuple(sorted({entry.dialect for entry in layer.entries} - {None}))
    fused = any(entry.index is not None for entry in layer.entries)
    return LayerFormat(*layer[:5], fused, dialects)
