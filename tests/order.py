"""The order of a session's tests: long ones first, so that no worker starts one when the rest is done.

Behind them come tests that share what takes seconds to make, as the inputs and the bound of a published layer: marked
`together`, they stand in one worker's part, before there is anything to steal of it.
"""


def group(item) -> str | None:
    """What `item` is marked `together` with."""
    marker = item and item.get_closest_marker("together")
    return marker.args[0] if marker else None


def long_first(items: list, workers: int) -> list:
    """`items`, long ones and those that go together dealt out to where each worker's part begins.

    xdist cuts the list into equal parts.
    """
    first = [[item] for item in items if item.get_closest_marker("long")]
    rest = [item for item in items if not item.get_closest_marker("long")]
    together: dict[str, list] = {}
    for item in rest:
        if name := group(item):
            together.setdefault(name, []).append(item)
    order = [item for item in rest if not group(item)]
    parts: list[list] = [[] for _ in range(workers)]
    for number, item in enumerate(first):
        parts[number % workers] += item
    others = parts[len(first) :] or parts  # behind a long test, others would steal from them, and make all of it again
    for number, block in enumerate(together.values()):
        others[number % len(others)] += block
    for place, part in enumerate(parts):
        at = place * len(items) // workers
        order[at:at] = part
    return order
