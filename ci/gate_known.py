"""Failures of toolchains, which are none of a kernel's: what each Triton cannot do, and who says so."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..kernels.w4a4 import FP4_KIND
from .gate_work import Outcome


@dataclass(frozen=True)
class Known:
    """Gates of `capabilities` and kernels like `kernel`, under `tritons`, fail with `message` in the error.

    `instruction`: only those that expect one like it. One of them that passes is red as well: the line is then to be
    removed. Of several lines that a gate is in, the first counts.
    """

    tritons: tuple[str, ...]
    capabilities: tuple[tuple[int, int], ...]
    kernel: str
    message: str
    reason: str
    link: str
    instruction: str = "*"


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
)


def known_failure(outcome: Outcome, triton: str, table: tuple[Known, ...] = KNOWN) -> Known | None:
    """The line that `outcome`'s gate is in, whether it failed or not."""
    return next(
        (
            known
            for known in table
            if triton in known.tritons
            and outcome.capability in known.capabilities
            and fnmatchcase(outcome.launch.kernel, known.kernel)
            and fnmatchcase(outcome.launch.instruction or "", known.instruction)
        ),
        None,
    )


def verdict(outcome: Outcome, error: str, triton: str, table: tuple[Known, ...] = KNOWN) -> str:
    """ "passed", "failed", "known" or "unexpected pass", for a gate whose facts were judged to have `error`."""
    known = known_failure(outcome, triton, table)
    if known is None:
        return "failed" if error else "passed"
    if not error:
        return "unexpected pass"
    return "known" if known.message in error else "failed"
