"""What a run of one point gave, and the verdict on it. Pure."""

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from .bisect_search import BAD, GOOD, SKIP

DIFFERS = "differs"  # the kind of failure that a judge found: it is bad whatever the bad end's is


@dataclass(frozen=True)
class Failure:
    """What went wrong: its `kind` ("differs", "TypeError", "dies of SIGABRT", "hangs", "gate"), `place` and `text`.

    `place` is the innermost function of kernels/ that was running: "kernels/experts.py: gemm", "" where none was.
    """

    kind: str
    place: str = ""
    text: str = ""

    def is_like(self, other: "Failure | None") -> bool:
        """Whether it is the same failure: kind, place, and what it says, apart from numbers."""
        return other is not None and self._signature == other._signature

    @property
    def _signature(self) -> tuple[str, str, str]:
        told = "" if self.kind == DIFFERS else re.sub(r"0x[0-9a-fA-F]+|\d+", "#", self.first_line)
        return self.kind, self.place, told

    @property
    def first_line(self) -> str:
        return self.text.strip().partition("\n")[0]

    def __str__(self) -> str:
        if self.kind in (DIFFERS, "gate"):
            return self.first_line
        return self.kind + (f": {self.first_line}" if self.text else "") + (f" (in {self.place})" if self.place else "")


@dataclass(frozen=True)
class Found:
    """What a run gave: an output or machine code with its `digest`, and the `failure`, if there is one.

    `unusable` says why the point can be no subject at all, such as kernels that today's harness cannot import.
    `detail` is the machine code's facts in one line.
    """

    digest: str | None = None
    failure: Failure | None = None
    unusable: str | None = None
    detail: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        return str(self.unusable or self.failure or f"digest {short(self.digest)}")

    def as_json(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class Aim:
    """What makes a point bad: another `digest` than this, the good end's, and a failure like this, the bad end's."""

    digest: str | None = None
    failure: Failure | None = None

    def verdict(self, found: Found) -> str:
        """A failure that is neither a judge's nor like the bad end's says nothing about the point."""
        if found.unusable:
            return SKIP
        if found.failure:
            return BAD if found.failure.kind == DIFFERS or found.failure.is_like(self.failure) else SKIP
        return GOOD if self.digest is None or found.digest == self.digest else BAD


def short(digest: str | None) -> str:
    return digest[:12] if digest else "none"


def failure_of(error: BaseException, folder: Path) -> Failure:
    """Of an exception: what was raised first, its last line, and where in FOLDER/kernels that was."""
    causes = [error]
    while cause := causes[-1].__cause__ or (None if causes[-1].__suppress_context__ else causes[-1].__context__):
        causes.append(cause)
    first = causes[-1]
    place = next((place for one in reversed(causes) if (place := _place(one, folder))), "")
    line = str(first).strip().rpartition("\n")[2].replace(f"{folder}/", "")
    return Failure(type(first).__name__, place, line)


def _place(error: BaseException, folder: Path) -> str:
    found, at = "", error.__traceback__
    while at:
        code = at.tb_frame.f_code
        found = _named(code.co_filename, code.co_name, folder) or found
        at = at.tb_next
    return found


def place_in_dump(dump: str, folder: Path) -> str:
    """The innermost function of FOLDER/kernels in what faulthandler wrote."""
    lines = re.findall(r'^  File "(.+)", line \d+ in (.+)$', dump, re.MULTILINE)
    return next((place for file, function in lines if (place := _named(file, function, folder))), "")


def _named(file: str, function: str, folder: Path) -> str:
    path = Path(file)
    return f"{path.relative_to(folder)}: {function}" if path.is_relative_to(folder / "kernels") else ""
