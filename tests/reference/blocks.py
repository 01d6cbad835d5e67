"""Data for the tests of quantizers."""

import torch

from nvfp4_suite.contract.case import hashed


def ordinary(*shape: int) -> torch.Tensor:
    """fp32 in [-1, 1), spread evenly, with all 24 bits."""
    return (hashed(f"ordinary {shape}", *shape) >> 8).float() / 2**23 - 1


def neutral(recipe: str) -> torch.Tensor:
    """The global scale that changes nothing: the scale of a block is a sixth of its largest magnitude."""
    return torch.tensor(2688.0 if recipe == "transformer_engine" else 1.0)
