"""Failures of toolchains, which are none of a kernel's: what each Triton cannot do, and who says so."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from .gate_work import Outcome


@dataclass(frozen=True)
class Known:
    """Gates of `capabilities` and kernels like `kernel`, under `tritons`, fail with `message` in the error.

    One of them that passes is red as well: the line is then to be removed.
    """

    tritons: tuple[str, ...]
    capabilities: tuple[tuple[int, int], ...]
    kernel: str
    message: str
    reason: str
    link: str


KNOWN: tuple[Known, ...] = (
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
