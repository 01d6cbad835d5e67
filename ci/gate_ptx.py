"""Reads PTX: which matrix instructions, copies, conversions and offsets a kernel has. Pure.

PTX is the one text that all of Triton's NVIDIA back ends share; its virtual registers are defined by few statements
each, so that where an address comes from can be followed backwards.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

# Groups: the kind and the rest of its name, which holds shape and types. PTX ISA: wgmma, tcgen05.mma and mma.sync.
_MATRIX = re.compile(r"\b(?:(wgmma)\.mma_async\.sync\.aligned|(tcgen05)\.mma|(mma\.sync)\.aligned)\.(\S+)")
_TARGET = re.compile(r"^\.target (\w+)", re.MULTILINE)
_NO_CODE = re.compile(r"\s*(?:\.target|\.file|\.loc|//)")
_LOCAL = re.compile(r"\.local \.align \d+ \.b8\s+\w+\[(\d+)\]")
_TO_E4M3 = re.compile(r"\bcvt\.\S*?\.e4m3x2\.(\w+)")

_LABEL = re.compile(r"^(\$\w+):")
_STATEMENT = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.:]*)\s+([^;]*);")
_REGISTER = re.compile(r"%[a-z]+\d+")
_ADDRESS = re.compile(r"\[\s*(%rd\d+)")
_PRODUCT = re.compile(r"(?:mul|mad)\.lo\.[su]32")


@dataclass(frozen=True)
class Statement:
    """One instruction, without its predicate: "mul.lo.s32" with "%r4, %r47, %r32"; `line` is its place in the text."""

    line: int
    name: str
    operands: str

    @property
    def registers(self) -> list[str]:
        return _REGISTER.findall(self.operands)


class Ptx:
    """What a kernel's PTX says."""

    def __init__(self, text: str):
        self.text = text

    @property
    def target(self) -> str:
        """ "sm_90a" """
        return _TARGET.search(self.text)[1]

    @property
    def instructions(self) -> tuple[str, ...]:
        """The distinct matrix instructions: "wgmma m64n64k16.f32.bf16.bf16"."""
        found = [[part for part in match if part] for match in _MATRIX.findall(self.text)]
        return tuple(sorted({f"{kind} {form}" for kind, form in found}))

    @property
    def digest(self) -> str:
        """Of the code alone: without the name of the target, debug lines and comments, which name files."""
        code = self.text.partition("\t.section")[0].splitlines()
        return hashlib.sha256("\n".join(line for line in code if not _NO_CODE.match(line)).encode()).hexdigest()[:16]

    @property
    def local_bytes(self) -> int:
        """Bytes of local memory that the kernel itself has, such as an array with a computed index."""
        return sum(int(size) for size in _LOCAL.findall(self.text))

    @property
    def to_e4m3(self) -> tuple[str, ...]:
        """From which types values are converted to e4m3: "f32" rounds once, "f16x2" had been rounded before."""
        return tuple(sorted(set(_TO_E4M3.findall(self.text))))

    @property
    def loop_copies(self) -> tuple[str, ...]:
        """Reads of global memory in loops: "cp.async 16 x2" copies 16 bytes a thread, "ld v4.b32" waits for them."""
        loops = self._loops()
        inside = (each for each in self.statements if any(first <= each.line <= last for first, last in loops))
        counts = Counter(filter(None, map(_copy, inside)))
        return tuple(f"{copy} x{count}" if count > 1 else copy for copy, count in sorted(counts.items()))

    @property
    def narrow_products(self) -> int:
        """32-bit products of two run-time values that become part of an address in global memory.

        Such a product wraps around where an offset is over 2^31, whatever it is widened to afterwards. Not counted is
        (a / b) * b, the inner part of a remainder, as it is at most a.
        """
        return sum(1 for each in self._behind_addresses() if _PRODUCT.fullmatch(each.name) and self._varies(each))

    @cached_property
    def statements(self) -> list[Statement]:
        lines = enumerate(self.text.splitlines())
        found = ((line, _STATEMENT.match(text)) for line, text in lines)
        return [Statement(line, match[1], match[2]) for line, match in found if match]

    @cached_property
    def _definitions(self) -> dict[str, list[Statement]]:
        """By register: the statements that write it, which for a value of a loop are several."""
        definitions: dict[str, list[Statement]] = {}
        for each in self.statements:
            if not each.operands.startswith("["):
                head = each.operands[: each.operands.find("}")] if each.operands.startswith("{") else each.operands
                count = None if each.operands.startswith("{") else 1
                for register in _REGISTER.findall(head)[:count]:
                    definitions.setdefault(register, []).append(each)
        return definitions

    def _loops(self) -> list[tuple[int, int]]:
        """(first line, last line) of each loop: from a label to the last branch back to it."""
        labels = {match[1]: line for line, text in enumerate(self.text.splitlines()) if (match := _LABEL.match(text))}
        branches = ((each.line, each.operands.strip()) for each in self.statements if each.name.startswith("bra"))
        return [(labels[label], line) for line, label in branches if labels.get(label, line) < line]

    def _behind_addresses(self) -> Iterator[Statement]:
        """The arithmetic from which addresses in global memory come; what is loaded is a start."""
        accesses = [each for each in self.statements if ".global" in each.name]
        todo = [register for each in accesses for register in _ADDRESS.findall(each.operands)]
        seen: set[str | Statement] = set(todo)
        while todo:
            for each in self._definitions.get(todo.pop(), ()):
                if each in seen or each.name.startswith("ld."):
                    continue
                seen.add(each)
                yield each
                todo += [register for register in each.registers if not (register[1] == "p" or register in seen)]
                seen.update(each.registers)

    def _varies(self, product: Statement) -> bool:
        """Whether both factors are known at run time only, and it is not a quotient times its divisor."""
        factors = [self._origin(part.strip()) for part in product.operands.split(",")[1:3]]
        return all(factor.startswith("%") for factor in factors) and not self._is_remainder(*factors)

    def _is_remainder(self, first: str, second: str) -> bool:
        return any(
            each.name.startswith("div.") and self._origin(each.registers[-1]) == divisor
            for quotient, divisor in ((first, second), (second, first))
            for each in self._definitions.get(quotient, ())
        )

    def _origin(self, operand: str) -> str:
        """What `operand` was before it was moved or converted, a register or a constant."""
        made = self._definitions.get(operand, ())
        if len(made) == 1 and made[0].name.startswith(("mov.", "cvt.")) and "{" not in made[0].operands:
            return self._origin(made[0].operands.split(",")[1].strip())
        return operand


def _copy(statement: Statement) -> str | None:
    """ "cp.async 4", "ld b16", or None for what reads no global memory."""
    if statement.name.startswith("cp.async.") and ".global" in statement.name:
        size = statement.operands.rsplit("],", 1)[-1].split(",")[0].strip()
        return f"cp.async {int(size, 0)}"
    if statement.name.startswith("ld.") and ".global" in statement.name:
        return f"ld {statement.name.split('.global.', 1)[-1]}"
    return None
