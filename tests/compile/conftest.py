"""Ends a session with the gate table: what each architecture's compiler made of each kernel and tile."""

import re

_HEAD = ("arch", "kernel", "tile", "binaries", "instruction", "shared / limit", "regs", "stack", "seconds", "")
_LEFT = {"arch", "kernel", "tile", "instruction", ""}


def pytest_terminal_summary(terminalreporter) -> None:
    """One line per architecture, kernel and tile; dtypes and options share it, and the largest value shows."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    gates = [r for r in reports if getattr(r, "when", "") == "call" and "arch" in dict(r.user_properties)]
    if not gates:
        return
    groups = {}
    for report in gates:
        gate = dict(report.user_properties) | {"failed": report.failed}
        groups.setdefault((gate["arch"], gate["kernel"], gate["tile"]), []).append(gate)
    tools = sorted({tool for gate in gates for name, tool in gate.user_properties if name in ("triton", "assembler")})
    terminalreporter.section(f"compile gates: {', '.join(tools)}")
    for line in _aligned([_HEAD, *_without_repeats([_row(groups[key]) for key in sorted(groups, key=_order)])]):
        terminalreporter.write_line(line)


def _order(key: tuple[str, str, str]) -> tuple:
    """By architecture, tiled kernels first, then kernel and the numbers of the tile."""
    arch, kernel, tile = key
    return int(arch.removeprefix("sm_")), not tile, kernel, [int(number) for number in re.findall(r"\d+", tile)]


def _row(gates: list[dict]) -> tuple[str, ...]:
    compiled = [gate for gate in gates if "registers" in gate]
    failed = sum(gate["failed"] for gate in gates)
    largest = {
        name: max((gate[name] for gate in compiled), default=0) for name in ("shared_bytes", "registers", "stack_bytes")
    }
    instructions = sorted({gate["instruction"] for gate in compiled})
    return (
        *(gates[0][name] for name in ("arch", "kernel", "tile")),
        str(len(gates)),
        " and ".join(instructions) if compiled else "does not compile",
        f"{largest['shared_bytes']:,} / {gates[0]['limit']:,}",
        str(largest["registers"]),
        str(largest["stack_bytes"]),
        f"{sum(gate['seconds'] for gate in compiled):.1f}",
        f"{failed} FAILED" if failed else "",
    )


def _without_repeats(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Names an architecture in its first row only."""
    previous = [None, *(row[0] for row in rows)]
    return [("" if row[0] == before else row[0], *row[1:]) for row, before in zip(rows, previous, strict=False)]


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = (zip(row, widths, _HEAD, strict=True) for row in rows)
    return [
        "  ".join(cell.ljust(width) if name in _LEFT else cell.rjust(width) for cell, width, name in line).rstrip()
        for line in cells
    ]
