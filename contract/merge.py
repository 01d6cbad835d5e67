"""Banks of parts of a layer's experts, made one."""

from collections.abc import Sequence

from .banks import ExpertBanks
from .dense_banks import DenseBanks


def merge(parts: Sequence[ExpertBanks | DenseBanks]) -> ExpertBanks | DenseBanks:
    """One layer's banks from those of its experts' parts, in order; input scales are kept.

    W4A4 quantizes each GEMM's input with one scale for the layer, so parts of different layers are to be kept side by
    side (binding.py), never merged. Raises TypeError for parts of several kinds, ValueError for none, for parts of
    several shapes and for input scales that some parts have: `without_input_scales` says that they shall go.
    """
    import torch

    if not parts:
        raise ValueError("there are no parts, but should be at least one")
    for i, part in enumerate(parts):
        _check_alike(parts[0], part, i)
    names = [name for name, _ in parts[0].tensors()]
    return type(parts[0])(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


def _check_alike(first: ExpertBanks | DenseBanks, part: ExpertBanks | DenseBanks, i: int) -> None:
    if type(part) is not type(first) or (isinstance(first, DenseBanks) and part.formats != first.formats):
        kinds = " and ".join(f"{type(p).__name__} for {' or '.join(p.formats)}" for p in (first, part))
        raise TypeError(f"parts 0 and {i} are {kinds}, but should be of one kind")
    for size in ("hidden", "intermediate"):
        if getattr(part, size) != getattr(first, size):
            wanted = f"{getattr(first, size)} as in part 0"
            raise ValueError(f"part {i} has {size} {getattr(part, size)}, but should have {wanted}")
    if part.formats != first.formats:
        having, lacking = (i, 0) if "w4a4" in part.formats else (0, i)
        raise ValueError(f"part {having} has input scales and part {lacking} has none, but all should, or none")
