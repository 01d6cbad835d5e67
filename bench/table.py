"""Rows as a short aligned table, and what they come to. Pure."""

from collections.abc import Sequence

from .statistics import geometric_mean

_HEAD = ("shape", "T", "stage", "kernel", "ms", "TFLOP/s", "roofline", "MFU", "x grouped", "against baseline", "error")


def table(rows: Sequence[dict]) -> list[str]:
    """A line for each row; columns that no row has are left out."""
    lines = [_cells(row) for row in rows]
    kept = [place for place in range(len(_HEAD)) if any(line[place] for line in lines)]
    lines = [[line[place] for place in kept] for line in (list(_HEAD), *lines)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(kept))]
    texts = {place for place, column in enumerate(kept) if _HEAD[column] in ("shape", "stage", "kernel")}
    return [
        "  ".join(cell.ljust(width) if place in texts else cell.rjust(width) for place, (cell, width) in both).rstrip()
        for both in ([*enumerate(zip(line, widths, strict=True))] for line in lines)
    ]


def _cells(row: dict) -> list[str]:
    error = row.get("error")
    return [
        row["shape"],
        str(row["tokens"]),
        row.get("stage", "layer"),
        row["kernel"] + ("" if row.get("replayed", True) else " (eager)"),
        f"{row['milliseconds']:.4g}",
        _number(row.get("tflops"), ".0f"),
        f"{row['roofline']:.0%} {row['bound']}" if row.get("roofline") else "",
        _number(row.get("mfu"), ".0%"),
        _number(row.get("over_grouped"), ".2f"),
        against(row) if row.get("ratio") else "",
        "" if error is None else f"{error:.1e}",
    ]


def against(row: dict) -> str:
    """As "1.030 [1.027, 1.034] slower"."""
    return f"{row['ratio']:.3f} [{row['ratio_low']:.3f}, {row['ratio_high']:.3f}] {row['verdict']}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def means(rows: Sequence[dict]) -> list[str]:
    """Geometric means of what rows compare, by kernel, stage and number of tokens, and over all tokens."""
    lines = []
    for kernel, stage in dict.fromkeys((row["kernel"], row["stage"]) for row in rows):
        mine = [row for row in rows if (row["kernel"], row["stage"]) == (kernel, stage)]
        tokens = list(dict.fromkeys(row["tokens"] for row in mine))
        for some in (*([one] for one in tokens), *([tokens] if len(tokens) > 1 else [])):
            at = [row for row in mine if row["tokens"] in some]
            where = f"T = {some[0]}" if len(some) == 1 else "all T"
            lines += [f"{stage} {kernel}, {where}: {text}" for text in _means_at(at)]
    return lines


def _means_at(rows: Sequence[dict]) -> list[str]:
    """Of two layers and more, each comparison that all of them have."""
    found = []
    if len(rows) > 1 and all(row.get("ratio") for row in rows):
        baselines = " and ".join(dict.fromkeys(row["baseline"] for row in rows))
        mean = 1 / geometric_mean([row["ratio"] for row in rows])
        found.append(f"{mean:.3f}x as fast as {baselines} over {len(rows)} points")
    if len(rows) > 1 and all(row.get("over_grouped") for row in rows):
        values = [row["over_grouped"] for row in rows]
        least, mean = min(values), geometric_mean(values)
        found.append(f"{mean:.3f}x as fast as grouped_mm over {len(rows)} points, {least:.3f}x at least")
    return found
