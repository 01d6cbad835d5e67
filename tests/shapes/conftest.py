"""Ends a session with two tables: how much of their bounds the published shapes use, and their errors.

An error of a whole half-width, 1.00, is no near miss: in the worst element a rounding is uncertain and went the other
way, which the bound allows for to the unit.
"""

from collections import defaultdict


def pytest_terminal_summary(terminalreporter) -> None:
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    calls = [dict(report.user_properties) for report in reports if getattr(report, "when", "") == "call"]
    ratios = [call["error_to_bound"].split(" | ") for call in calls if "error_to_bound" in call]
    errors = [call["relative_error"].split(" | ") for call in calls if "relative_error" in call]
    if ratios:
        terminalreporter.section("published shapes: largest error in half-widths of its bound, by tokens")
        for line in _by_tokens(ratios):
            terminalreporter.write_line(line)
    if errors:
        terminalreporter.section("||out - true|| / ||true||: found, predicted")
        for name, tokens, found, predicted in sorted(errors, key=lambda error: (error[0], int(error[1]))):
            terminalreporter.write_line(f"{name:24}{tokens:>6} tokens{found:>12}{predicted:>12}")


def _by_tokens(ratios: list[list[str]]) -> list[str]:
    """A line for each shape and kernel, a column for each number of tokens."""
    rows = defaultdict(dict)
    for name, kernel, tokens, ratio in ratios:
        rows[name, kernel][int(tokens)] = ratio
    columns = sorted({tokens for row in rows.values() for tokens in row})
    lines = [f"{'':46}" + "".join(f"{tokens:>7}" for tokens in columns)]
    for (name, kernel), row in sorted(rows.items()):
        lines.append(f"{name:22}{kernel:24}" + "".join(f"{row.get(tokens, ''):>7}" for tokens in columns))
    return lines
