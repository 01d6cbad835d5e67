"""One layer whose inputs change in place, as a server changes them between two replays of a CUDA graph.

vllm-project/vllm#52383: a replay used a padded copy of the activations that was made when the graph was captured.
"""

from dataclasses import dataclass

import torch

from nvfp4_suite.contract.case import Case, Inputs, hashed, random_inputs
from nvfp4_suite.contract.kernel import Kernel

from .edges import shape_of

TOKENS, EXPERTS = 8, 8  # of EDGES["rerouted"]
# What the experts of a token are, and how many tokens are valid; the ids of the others are -1. Long before short.
STEPS = (
    ("others", 8),
    ("others", 8),
    ("one", 8),
    ("others", 5),
    ("dropped", 8),
    ("one", 3),
    ("dropped", 8),
    ("others", 1),
    ("others", 8),
    ("dropped", 4),
    ("one", 8),
    ("dropped", 2),
)


@dataclass(frozen=True)
class Static:
    """The tensors that a graph reads: `x` [8, H], `weights` and `ids` [8, 2], changed in place alone."""

    inputs: Inputs

    @property
    def arguments(self) -> tuple[torch.Tensor, ...]:
        return self.inputs.hidden_states, self.inputs.topk_weights, self.inputs.topk_ids

    def change(self, step: int) -> None:
        """Other activations, weights and ids, as STEPS says."""
        seed = f"step {step}"
        x = hashed(f"{seed}/x", *self.inputs.hidden_states.shape).double() / 2**31 - 1
        weights = (hashed(f"{seed}/weights", TOKENS, 2) >> 8).float() / 2**24 + 2**-6
        for mine, new in zip(self.arguments, (x, weights, ids_of(step)), strict=True):
            mine.copy_(new)


def static(kernel: Kernel, device: str) -> Static:
    """As a graph is captured: two experts serve all tokens."""
    shape = shape_of("rerouted", kernel.name)
    inputs = random_inputs(Case(shape, TOKENS, "few", inputs="random", format=kernel.promise.formats[0]))
    assert set(inputs.topk_ids.flatten().tolist()) == {0, 1}
    return Static(inputs.to(device))


def ids_of(step: int) -> torch.Tensor:
    """int32 [8, 2]: experts 2 to 7, or 7 alone, or of the former some -1."""
    kind, valid = STEPS[step]
    first = hashed(f"step {step}/ids", TOKENS) % (EXPERTS - 2)
    ids = torch.stack([first, (first + 1 + step % 3) % (EXPERTS - 2)], 1).to(torch.int32) + 2
    if kind == "one":
        ids = torch.full_like(ids, EXPERTS - 1)
    elif kind == "dropped":
        ids = torch.where(hashed(f"step {step}/dropped", TOKENS, 2) % 3 == 0, -1, ids).to(torch.int32)
        ids[0, step % 2] = -1  # also where the hash drops none
    ids[valid:] = -1
    return ids
