"""The Kernel protocol: how a test, a golden or a benchmark reaches a kernel, and what that kernel promises."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from .banks import ExpertBanks

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "swigluoai")
DTYPES = ("bf16", "fp16")  # of hidden_states and of the result


@dataclass(frozen=True)
class Promise:
    """What a kernel says of itself; it is judged by this and by nothing else.

    `capabilities` are those it runs on (None: every CUDA GPU from 8.0). `rounding` names the declared form of its
    rounding points in `reference.moe.expert_layer`. `repeatable` means: same inputs, same bytes, always.
    """

    formats: tuple[str, ...] = ("w4a16",)
    dtypes: tuple[str, ...] = DTYPES
    activations: tuple[str, ...] = ACTIVATIONS
    capabilities: tuple[tuple[int, int], ...] | None = None
    repeatable: bool = True
    rounding: str = "w4a16"
    interpreted: bool = True


class Kernel(Protocol):
    """One way to compute an expert layer."""

    name: str
    promise: Promise

    def prepare(self, banks: "ExpertBanks") -> Any:
        """Once per layer: `banks` in whatever form `run` wants."""

    def run(
        self,
        prepared: Any,
        hidden_states: "Tensor",
        topk_weights: "Tensor",
        topk_ids: "Tensor",
        *,
        activation: str = "silu",
        activation_alpha: float = 1.702,
        activation_limit: float = 7.0,
        weight_on_input: bool = False,
    ) -> "Tensor":
        """The layer's output [T, H] in the dtype of `hidden_states` [T, H]; weights f32 and ids i32 are [T, top_k]."""
