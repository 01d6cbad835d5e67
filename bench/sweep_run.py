"""Runs a sweep: every tile at every point beside what is planned there, a few at a time, right ones alone."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from ..kernels.variants import DEFAULT, VARIANTS
from . import sweep
from .check import Wrong
from .host import Host
from .measure import race, ready
from .points import Layer
from .rows import Point, row, write
from .run import Found, Place, Request, compile_beforehand, places, say
from .subjects import Subject, with_tile, with_tile_of

AT_ONCE = 4  # tiles that are timed in turns with the plan: each has a graph, whose buffers stay
NAMED = ("auto", "prefill")  # names of the default kernel


def run(request: Request, host: Host, sizes: dict) -> tuple[Found, list[str]]:
    """All rows, and the lines that say what tile is best. One subject and one stage.

    Raises ValueError for a kernel that has no such tiles, Wrong where what is planned is wrong.
    """
    (subject,), (stage,) = request.subjects, request.stages
    name = DEFAULT if subject.name in NAMED else subject.name
    if name not in VARIANTS or subject.tile:
        raise ValueError(f"--kernel is {subject.label!r}, but a sweep's should be prefill or one of {tuple(VARIANTS)}")
    subject = Subject("prefill" if name == DEFAULT else name, (), subject.kernels)
    tiles = list(sweep.tiles(host.gpu, VARIANTS[name], sizes))
    if not tiles:
        raise ValueError(f"--tiles leaves none that fits {host.gpu.name}")
    say(f"{len(tiles)} tiles fit {host.gpu.name}")
    compile_beforehand(replace(request, subjects=[subject, *(with_tile_of(subject, tile) for tile in tiles)]), host)
    found, times, planned = Found(), {}, {}
    for layer in request.layers:
        for place, _, rates in places(request, host, layer):
            point = Point(layer, place.given.tokens, stage, rates, host.facts)
            key = _key(layer, point.tokens)
            planned[key], times[key] = _point(place, point, subject, tiles, request.budget, found)
            say(f"{layer.name} T = {point.tokens}: best {_best(times[key])}, planned {planned[key]:.4g} ms")
            if request.artifacts:
                write(request.artifacts, found.rows)
    return found, lines(times, planned)


def _key(layer: Layer, tokens: int) -> sweep.Key:
    return layer.name, tokens, tokens * layer.shape.top_k / layer.shape.experts


def _point(
    place: Place, point: Point, subject: Subject, tiles: Sequence, budget: float, found: Found
) -> tuple[float, dict]:
    """The plan's milliseconds, and each right tile's.

    A tile's time is its ratio to the plan's in the same rounds, times the plan's median over all of them, so that a
    card that slows down from one few to the next changes nothing.
    """
    plans, ratios, timer = [], {}, place.host.timer
    plan = ready(place.contender(subject, point.stage), timer)
    if plan.wrong:
        raise Wrong(f"what is planned, so that nothing compares: {plan.wrong}")
    for first in range(0, len(tiles), AT_ONCE):
        some = tiles[first : first + AT_ONCE]
        contenders = [place.contender(with_tile_of(subject, tile), point.stage) for tile in some]
        base, *measured = race([plan, *(ready(one, timer) for one in contenders)], timer, budget)
        plans.append(base.milliseconds)
        for tile, one in zip(some, measured, strict=True):
            if one.wrong:
                found.wrong.append(f"WRONG, so not timed: {point.layer.name} T = {point.tokens}: {one.wrong}")
            else:
                ratios[tile] = one.milliseconds / base.milliseconds
                found.rows.append(row(point, one, base, None))
    planned = median(plans)
    return planned, {tile: ratio * planned for tile, ratio in ratios.items()}


def _best(times: dict) -> str:
    if not times:
        return "none, as all were wrong"
    tile = min(times, key=times.get)
    return f"{_label(tile)} {times[tile]:.4g} ms"


def _label(tile: object) -> str:
    return with_tile("", tuple(vars(tile).items()))


def lines(times: sweep.Times, planned: dict[sweep.Key, float], most: int = 10) -> list[str]:
    """What a sweep found: the best of each point, the `most` tiles that lose least, and the entry it suggests."""
    times = {key: {**found} for key, found in times.items() if found}
    if not times:
        return ["no tile was right anywhere"]
    best = sweep.best(times)
    found = ["best tile of each point, and how much slower what is planned is:"]
    for (layer, tokens, per_expert), tile in best.items():
        fastest = times[layer, tokens, per_expert][tile]
        behind = planned[layer, tokens, per_expert] / fastest - 1
        where = f"{layer} T = {tokens} ({per_expert:.3g} tokens per expert)"
        found.append(f"  {where}: {_label(tile)}  {fastest:.4g} ms, planned {behind:+.1%}")
    found.append("loss against the best of each point, mean (largest):")
    # What is planned may be better than any tile that was tried.
    found.append(f"  as planned: {sweep.loss(times, {key: planned[key] for key in times})}")
    for tile, loss in list(sweep.losses(times).items())[:most]:
        found.append(f"  {_label(tile)}: {loss}")
    if not sweep.losses(times):
        return [*found, "no tile was right at every point, so that none is suggested"]
    entry = sweep.suggest(times)
    found.append(f"suggested for kernels/tuning.py, loss {sweep.of_entry(times, entry)}:")
    return [*found, f"  {sweep.entry_text(entry)}"]
