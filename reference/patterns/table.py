"""All patterns in which a difference may show. To add one, add a function of a Difference to PATTERNS."""

from . import likeness, places, steps
from .difference import Difference

PATTERNS = (
    places.rows_and_columns,
    places.tokens,
    likeness.blank,
    likeness.moved,
    likeness.multiple,
    likeness.slot,
    steps.k_steps,
)


def find(d: Difference) -> list[str]:
    """One line for each pattern that the wrong elements show: first where they lie, then what they hold."""
    if d.wrong.dim() != 2:
        return places.rows_and_columns(d)
    return [line for pattern in PATTERNS for line in pattern(d)]
