"""Failures of toolchains, which are none of a kernel's: what each Triton cannot do, and who says so."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..kernels.launch import Launch
from ..kernels.w4a4 import FP4_KIND
from .gate_facts import Capability
from .gate_outcome import Outcome


@dataclass(frozen=True)
class Known:
    """Gates of `capabilities` and kernels like `kernel`, under `tritons`, do not compile, with `message` in the error.

    `instruction`, `x` and `label`: only those that expect such an instruction, take activations of such a type, and
    have such a Launch.label. `compiles`: they do compile, and `message` is all that is wrong with them. One of them
    that passes is red as well: the line is then to be removed. Of several lines that a gate is in, the first counts.
    """

    tritons: tuple[str, ...]
    capabilities: tuple[Capability, ...]
    kernel: str
    message: str
    reason: str
    link: str = ""
    instruction: str = "*"
    x: str = "*"
    label: str = "*"
    compiles: bool = False

    @property
    def why(self) -> str:
        return f"{self.reason} ({self.link})" if self.link else self.reason

    def has(self, capability: Capability, launch: Launch, triton: str) -> bool:
        patterns = (
            (self.kernel, launch.kernel),
            (self.instruction, launch.instruction or ""),
            (self.x, dict(launch.arguments).get("x", "")),
            (self.label, launch.label),
        )
        listed = triton in self.tritons and capability in self.capabilities
        return listed and all(fnmatchcase(name, like) for like, name in patterns)

    def explains(self, error: str, compiled: bool) -> bool:
        """Whether `error` is what this line says, and, of what `compiled`, nothing more."""
        if self.compiles != compiled:
            return False
        return error.endswith(f": {self.message}") if compiled else self.message in error


def _no_native_dot(tritons: tuple[str, ...], capability: tuple[int, int]) -> Known:
    return Known(
        tritons,
        (capability,),
        "w4a4.*",
        "PassManager::run failed",
        "it has no FP4 instruction for the architecture, and cannot take a scaled dot with scales of e4m3 apart",
        "https://github.com/triton-lang/triton/issues/7549",
        f"*{FP4_KIND}",
    )


KNOWN: tuple[Known, ...] = (
    _no_native_dot(("3.6.0",), (11, 0)),
    _no_native_dot(("3.6.0", "3.7.1"), (12, 1)),
    Known(
        ("3.6.0",),
        ((11, 0),),
        "*",
        "Value 'sm_110",
        "the assembler that it ships does not know sm_110",
        "https://github.com/triton-lang/triton/pull/10462",
    ),
    # Four words a thread, stored before the loop over K and loaded behind it: eight instructions in a program's life.
    # The tiles that spill nothing (8 warps, 2 stages, steps of 16 bytes) keep fewer sums a warp or fewer loads in
    # flight, or step twice as often, in every step of the loop: by reasoning, an A100 is better off with this one.
    Known(
        ("3.7.1",),
        ((8, 0),),
        "gemm.w4a16_gemm",
        "the stack is 16 bytes a thread (spilled registers), but should be 0",
        "it spills four registers of the largest tile, outside of the loop; tiles that spill none cost more in it",
        x="*bf16",
        label="gate_up BLOCK_M=128 BLOCK_N=64 BLOCK_KB=32 K_UNIT=32 WEIGHTED=False SCALE_WORDS=False 4 warps 3 stages",
        compiles=True,
    ),
)


def known_failure(
    capability: Capability, launch: Launch, triton: str, table: tuple[Known, ...] = KNOWN
) -> Known | None:
    """The line that this gate is in, whether it failed or not."""
    return next((known for known in table if known.has(capability, launch, triton)), None)


def verdict(outcome: Outcome, error: str, triton: str, table: tuple[Known, ...] = KNOWN) -> str:
    """ "passed", "failed", "known" or "unexpected pass", for a gate whose facts were judged to have `error`."""
    known = known_failure(outcome.capability, outcome.launch, triton, table)
    if known is None:
        return "failed" if error else "passed"
    if not error:
        return "unexpected pass"
    return "known" if known.explains(error, compiled=outcome.facts is not None) else "failed"
