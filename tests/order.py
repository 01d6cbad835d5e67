"""The order of a session's tests: those marked `long` first, so that no worker starts one when the rest is done."""


def long_first(items: list, workers: int) -> list:
    """`items`, the long ones dealt out to where each worker's part begins: xdist cuts the list into equal parts."""
    long = [item for item in items if item.get_closest_marker("long")]
    order = [item for item in items if not item.get_closest_marker("long")]
    for place in sorted(number % workers for number in range(len(long))):
        order.insert(place * len(items) // workers, long.pop(0))
    return order
