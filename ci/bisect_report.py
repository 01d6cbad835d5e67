"""A bisect's end, for a person and for CI: the verdict first, what changed, what to do next."""

import json
from pathlib import Path

from .bisect_run import Result
from .bisect_search import SKIP
from .bisect_trial import Point

FORMAT = 1
FILE = "bisect.json"
_AMONG = 20  # points that are listed, of those among which the first bad one is


def text(result: Result, changes: dict[str, list[str]]) -> str:
    """The report: "FIRST BAD: ...", aligned facts, and commands."""
    point, skipped = result.first_bad[0], {step.point.key: step for step in result.steps if step.verdict == SKIP}
    if len(result.first_bad) > 1:
        lines = [f"FIRST BAD: one of {len(result.first_bad)}, between which nothing can be judged:"]
        for one in result.first_bad[:_AMONG]:
            why = skipped[one.key].found if one.key in skipped else "bad"
            lines.append(f"  {one}: {why}")
        lines += [f"  and {len(result.first_bad) - _AMONG} more"] if len(result.first_bad) > _AMONG else []
        return "\n".join([*lines, *_row("next", _next(point, result.repeat))])
    by = f" ({point.by})" if point.by else ""
    lines = [f"{'FIRST BAD' if result.confirmed else 'NOT CONFIRMED'}: {point}{by}"]
    if result.confirmed:
        lines += _row("checked", [f"bad there, good before it, at {result.last_good.name}"])
        lines += _row("bad is", [str(result.found(point))])
    for name, told in changes.items():
        lines += _row(name, told)
    return "\n".join([*lines, *_row("note", result.notes), *_row("next", _next(point, result.repeat))])


def _row(name: str, told: list[str]) -> list[str]:
    """Lines under one name, which stands before the first of them."""
    return [f"  {name if not place else '':8} {line}" for place, line in enumerate(told)]


def _next(point: Point, repeat: str) -> list[str]:
    return ([f"git show {point.name} -- kernels"] if point.kernels else []) + [repeat]


def document(result: Result, changes: dict[str, list[str]], asked: list[str]) -> dict:
    """All of it as JSON has it; `asked` are the arguments."""
    verdict = "found" if result.confirmed else "among" if len(result.first_bad) > 1 else "not confirmed"
    return {
        "format": FORMAT,
        "verdict": verdict,
        "asked": asked,
        "subject": result.subject,
        "first_bad": [_told(point) for point in result.first_bad],
        "last_good": result.last_good and _told(result.last_good),
        "changes": changes,
        "notes": result.notes,
        "steps": [
            {"what": step.what, "verdict": step.verdict, **_told(step.point), "found": step.found.as_json()}
            for step in result.steps
        ],
    }


def refusal(why: str, asked: list[str]) -> dict:
    """The document of a bisect that found nothing, and why not."""
    return {"format": FORMAT, "verdict": "refused", "asked": asked, "why": why}


def write(folder: Path, told: dict) -> Path:
    """`told` as FOLDER/bisect.json, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{FILE}.tmp"
    temporary.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return temporary.replace(folder / FILE)


def _told(point: Point) -> dict:
    return {"id": point.id, "name": point.name, "subject": point.subject}
