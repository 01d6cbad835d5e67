"""What the first bad point changed: of a case its digest, its plan and the machine code of its launches."""

from . import codegen
from .bisect_found import short
from .bisect_run import Result
from .bisect_subject import CaseSubject, LaunchSubject
from .bisect_trial import Point
from .gate_compile import arch_name

AS_BEFORE = "as before"
_FACTS = "sass="  # what a line of facts has, and an error has not


def changes(subject: CaseSubject | LaunchSubject, result: Result) -> dict[str, list[str]]:
    """Lines under "digest", "plan" and "SASS", each from the last good point to the first bad one."""
    points = result.last_good, result.first_bad[0]
    old, new = map(result.found, points)
    if isinstance(subject, LaunchSubject):
        same = old.detail and new.detail and old.detail != new.detail
        return {"SASS": [codegen.differences(old.detail, new.detail) if same else AS_BEFORE if new.detail else "none"]}
    digest = AS_BEFORE if old.digest == new.digest else f"{short(old.digest)} -> {short(new.digest)}"
    return {"digest": [digest], **_plan_and_code(subject, *points)}


def _plan_and_code(subject: CaseSubject, old: Point, new: Point) -> dict[str, list[str]]:
    requests = [subject.planned(point) | {"capability": subject.capability} for point in (old, new)]
    asked = zip((old, new), requests, strict=True)
    answers = [subject.trials.ask(point, "plan_case", **request).values for point, request in asked]
    if problem := next((_problem(answer) for answer in answers if "launches" not in answer), None):
        return {"plan": [problem]}
    before, now = ({one["stage"]: one for one in answer["launches"]} for answer in answers)
    keys = [answer["keys"] for answer in answers]
    stages = [stage for stage in now if stage in before and keys[0][stage] != keys[1][stage]]
    plan = plan_differences(before, now) or [AS_BEFORE]
    return {"plan": plan, "SASS": _code(subject, (old, new), requests, stages)}


def _problem(answer: dict) -> str:
    return f"unknown: {answer.get('unusable') or answer.get('failure', {}).get('text') or 'the step died'}"


def plan_differences(before: dict[str, dict], now: dict[str, dict]) -> list[str]:
    """How two plans differ, launches by stage: "gate_up: BLOCK_KB 32 -> 16, num_stages 3 -> 2"."""
    lines = [f"{stage}: no longer launched" for stage in before if stage not in now]
    for stage, launch in now.items():
        if stage not in before:
            lines.append(f"{stage}: launched now")
            continue
        old, new = _flat(before[stage]), _flat(launch)
        names = [name for name in {**new, **old} if old.get(name) != new.get(name)]
        if names:
            told = (f"{name} {old.get(name, 'none')} -> {new.get(name, 'none')}" for name in names)
            lines.append(f"{stage}: {', '.join(told)}")
    return lines


def _flat(launch: dict) -> dict[str, object]:
    """A launch with its constexprs and arguments beside the rest."""
    rest = {name: value for name, value in launch.items() if name not in ("constexprs", "arguments", "divisible")}
    divisible = " ".join(launch["divisible"])
    return rest | dict(launch["constexprs"]) | dict(launch["arguments"]) | {"divisible": divisible}


def _code(subject: CaseSubject, points: tuple[Point, Point], requests: list[dict], stages: list[str]) -> list[str]:
    """How the machine code of `stages` differs: of those whose sources, plan and toolchain are not the same."""
    where = arch_name(subject.capability)
    if not stages:
        return [f"{AS_BEFORE} on {where}"]
    asked = zip(points, requests, strict=True)
    before, now = (
        subject.trials.ask(point, "compile_plan", stages=stages, **request).values.get("facts", {})
        for point, request in asked
    )
    lines = []
    for stage in stages:
        old, new = before.get(stage, "does not compile"), now.get(stage, "does not compile")
        if old != new:
            compared = _FACTS in old and _FACTS in new
            lines.append(f"{where} {stage}: {codegen.differences(old, new) if compared else new.partition(' ')[2]}")
    return lines or [f"{AS_BEFORE} on {where}"]
