"""Reads a cubin, the ELF file with one kernel's machine code: registers, stack and instructions. Pure.

This is what `cuobjdump --dump-resource-usage` and `nvdisasm` print, without a process for each, which takes as long as
a third of the compilation; a test compares the two.
"""

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

# Attributes of .nv.info: one (symbol, value) each.
_REGISTERS, _FRAME_BYTES = 0x2F, 0x11
_WITH_DATA = 4

_INSTRUCTION_BYTES = 16
# The opcode is the lowest 12 bits; these have the same on sm_80 to sm_121, the last two where there are any: they
# multiply e2m1 by e2m1, on sm_120 and on sm_100.
_OPCODES = {"BAR": 0xB1D, "LDL": 0x983, "STL": 0x387, "OMMA": 0x47F, "UTCOMMA": 0x5EA}
_WARPGROUP_ARRIVE = 0x79C5  # the lowest 64 bits, predicate included; WARPGROUP.DEPBAR has more of them set


@dataclass(frozen=True)
class Cubin:
    """Per thread: `registers` and `stack_bytes`. `sass` is a digest of the machine code alone, without debug lines.

    Numbers of instructions in the code: `barriers` (BAR), `local_accesses` (LDL and STL), `fp4_instructions` (OMMA and
    UTCOMMA) and `warpgroup_arrives`, each of which makes asynchronous matrix instructions wait for registers: more than
    there are groups means that the compiler serialized them.
    """

    registers: int
    stack_bytes: int
    barriers: int
    local_accesses: int
    fp4_instructions: int
    warpgroup_arrives: int
    sass: str


def read_code(data: bytes) -> Cubin:
    """The facts of a cubin with one kernel."""
    sections = dict(_sections(data))
    code = next(content for name, content in sections.items() if name.startswith(".text."))
    attributes = list(_attributes(sections[".nv.info"]))
    words = [word for word, _ in struct.iter_unpack("<QQ", code)]
    counts = {name: sum(word & 0xFFF == opcode for word in words) for name, opcode in _OPCODES.items()}
    return Cubin(
        registers=max(value for kind, value in attributes if kind == _REGISTERS),
        stack_bytes=max(value for kind, value in attributes if kind == _FRAME_BYTES),
        barriers=counts["BAR"],
        local_accesses=counts["LDL"] + counts["STL"],
        fp4_instructions=counts["OMMA"] + counts["UTCOMMA"],
        warpgroup_arrives=words.count(_WARPGROUP_ARRIVE),
        sass=hashlib.sha256(code).hexdigest()[:16],
    )


def _sections(data: bytes) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each section of a 64-bit ELF file."""
    (offset,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", data, offset + index * size) for index in range(count)]
    for name, kind, _, _, start, length in heads:
        begin = heads[names][4] + name
        yield data[begin : data.index(b"\0", begin)].decode(), b"" if kind == 8 else data[start : start + length]


def _attributes(content: bytes) -> Iterator[tuple[int, int]]:
    """(attribute, value) of those attributes that are about one symbol."""
    at = 0
    while at < len(content):
        form, kind, size = struct.unpack_from("<BBH", content, at)
        at += 4
        if form == _WITH_DATA:
            if size == 8:
                yield kind, struct.unpack_from("<II", content, at)[1]
            at += size
