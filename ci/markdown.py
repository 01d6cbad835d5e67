"""Text that a run has made, on a page of GitHub's: none of it links, calls anybody, or is markup. Pure."""

import re

INLINE = 300  # characters of one line


def block(text: str) -> str:
    """`text` as a block of code, in which nothing counts but a fence as long as its own: so it gets a longer one."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def inline(text: str) -> str:
    """The first INLINE characters of `text`, as code inside a line or a table; a bar would end the table's cell."""
    line = " ".join(text.split()).replace("|", "\u00a6")[:INLINE]
    longest = max((len(run) for run in re.findall("`+", line)), default=0)
    ticks = "`" * (longest + 1)
    return f"{ticks} {line} {ticks}" if line else ""
