"""What the compiler made of one launch, as data. Pure."""

import re
from dataclasses import asdict, dataclass, fields

from .gate_cubin import read_code
from .gate_ptx import Ptx

Capability = tuple[int, int]
SCHEMA = 2  # raise it when a fact changes its meaning: what was stored under another number is not read

# Groups: the result and the last operand, which is the accumulator.
_DOT = re.compile(r"^\s*(%[\w#]+) = tt\.dot(?:_scaled)? [^:\n]*(%[\w#]+)[^:%\n]* : ", re.MULTILINE)


class GateError(AssertionError):
    """A launch does not become the binary that it should: which launch, on which architecture, what was wrong."""


@dataclass(frozen=True)
class Facts:
    """Sizes are in bytes, `registers`, `stack_bytes` and `local_bytes` per thread.

    `instructions` are the distinct matrix instructions of the PTX ("wgmma m64n64k16.f32.bf16.bf16"), `target` is its
    architecture ("sm_90a"). `stack_bytes` holds local variables with an address (`local_bytes`) and registers that were
    spilled; `local_accesses` counts the instructions that use it. `loop_copies`, `narrow_products`, `to_e4m3` and the
    digest `ptx` are told in gate_ptx.py, `barriers`, `fp4_instructions`, `warpgroup_arrives` and the digest `sass` in
    gate_cubin.py.
    `chained_dots` is told below. `assembler` is the ptxas that was used. `head` names the architecture whose PTX was
    assembled, where it is another's (see gate_compile.py).
    """

    target: str
    instructions: tuple[str, ...]
    shared_bytes: int
    registers: int
    stack_bytes: int
    local_bytes: int
    local_accesses: int
    fp4_instructions: int
    barriers: int
    warpgroup_arrives: int
    loop_copies: tuple[str, ...]
    narrow_products: int
    chained_dots: int
    to_e4m3: tuple[str, ...]
    ptx: str
    sass: str
    cubin_bytes: int
    triton: str
    assembler: str
    head: str = ""

    def as_json(self) -> dict:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, values: dict) -> "Facts":
        """Raises TypeError for other names, and ValueError for values of other types, than `as_json` writes."""
        found = cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
        wrong = [field.name for field in fields(cls) if type(getattr(found, field.name)) is not _type_of(field)]
        if wrong:
            raise ValueError(f"{', '.join(wrong)} should be of the type that Facts has")
        return found


def _type_of(field) -> type:
    return field.type if field.type in (int, str) else tuple


def chained_dots(ttir: str) -> int:
    """How many dots of Triton's IR add to the result of another dot in the same step of a loop."""
    dots = _DOT.findall(ttir)
    results = {result for result, _ in dots}
    return sum(accumulator in results for _, accumulator in dots)


def facts_of(ttir: str, ptx: str, cubin: bytes, shared_bytes: int, **tools: str) -> Facts:
    """The facts of a kernel's `ttir`, `ptx` and `cubin`; `tools` are `triton`, `assembler` and perhaps `head`."""
    text, code = Ptx(ptx), read_code(cubin)
    return Facts(
        target=text.target,
        instructions=text.instructions,
        shared_bytes=shared_bytes,
        local_bytes=text.local_bytes,
        loop_copies=text.loop_copies,
        narrow_products=text.narrow_products,
        chained_dots=chained_dots(ttir),
        to_e4m3=text.to_e4m3,
        ptx=text.digest,
        cubin_bytes=len(cubin),
        **asdict(code),
        **tools,
    )
