"""The Kernel protocol: how a test, a golden or a benchmark reaches a kernel, and what that kernel promises."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from .banks import ExpertBanks
    from .case import Case

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "swigluoai")
DTYPES = ("bf16", "fp16")  # of hidden_states and of the result
FORMATS = ("w4a16", "w4a4")  # what the GEMMs multiply: weights alone in NVFP4, or the activations as well
ATOMIC = "_atomic"  # ends the names of rounding forms whose additions over the slots round to the dtype


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

    def takes(self, case: "Case") -> bool:
        """Whether the kernel is held to `case`.

        An order-free case asks for bits. They are no promise of a kernel whose additions over the slots round, in
        whatever order, but where `case.atomics` says that none of them does.
        """
        options = case.dtype in self.dtypes and case.activation in self.activations
        settled = case.inputs == "random" or case.atomics or not self.rounding.endswith(ATOMIC)
        return case.format in self.formats and options and settled

    @property
    def orderfree_rounding(self) -> str:
        """The form whose bits an order-free case asks for: without atomics, which give the same where it takes them."""
        return self.rounding.removesuffix(ATOMIC)


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
