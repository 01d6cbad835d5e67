"""Texts that others wrote, made fit to be shown: hostile at worst, and long. Pure."""

import re
import unicodedata

_COLOURS = re.compile(r"(?:\x1b|#x1B)\[[0-9;]*[A-Za-z]")  # of a terminal; pytest writes the second form into XML
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def printable(text: str) -> str:
    """`text` without colours; what would not show, or would turn the order of letters around, is U+FFFD."""
    text = _COLOURS.sub("", text).replace("\r\n", "\n").expandtabs(4)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(one if one == "\n" or unicodedata.category(one) not in _UNSEEN else "\ufffd" for one in text)


def cut(text: str, lines: int, columns: int = 400) -> str:
    """At most so many lines and columns of `text`, printable; what was left out is said."""
    found = text.strip("\r\n").split("\n")
    kept = [
        line if len(line) <= columns else f"{line[:columns]} ... ({len(line) - columns:,} more)"
        for line in found[:lines]
    ]
    more = [f"... ({len(found) - lines:,} more lines)"] if len(found) > lines else []
    return printable("\n".join([*kept, *more]))


def first_line(text: str, columns: int = 200) -> str:
    """The first line that says something, cut."""
    return cut(next((line for line in text.split("\n") if line.strip()), ""), 1, columns).strip()


def count(number: int, one: str, more: str | None = None) -> str:
    """As "1 failure" or "2,000 failures"."""
    return f"{number:,} {one if number == 1 else more or one + 's'}"
