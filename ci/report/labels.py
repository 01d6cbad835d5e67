"""What a run was on, and with which versions, in words. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from .reading import Run

ENGINES = {"interpreter": "the interpreter", "compile": "the compiler", "peers": "the CPU"}


def engine(run: Run) -> str:
    """What ran the kernels of a run of tests: "gpu", "interpreter", ..., "" where nothing says."""
    if run.session:
        return run.session.engine
    if run.environment:
        return "gpu" if run.environment.gpus else "interpreter"
    return ""


def gate_of(group: str) -> tuple[str, str]:
    """("sm_90", "3.8.0") of "compile-gates.triton-3.8.0.sm_90"; empty texts for another group."""
    release, _, arch = group.partition(".triton-")[2].rpartition(".")
    return arch, release


def by_numbers(name: str) -> tuple[list[int], str]:
    """The order of architectures, and of releases: sm_90 before sm_100, 3.9.0 before 3.10.0."""
    return [int(number) for number in re.findall(r"\d+", name)], name


def on(run: Run) -> str:
    """Such as "2 x NVIDIA H200 (sm_90)", "the interpreter" or "sm_80, sm_90"."""
    if run.kind == "gates":
        return _listed(gate_of(result.group)[0] for result in run.suite.results)
    if run.kind == "golden":
        name = run.suite.properties.get("engine", "unknown engine")
        device = run.suite.properties.get("device", "")
        return f"{device or 'a GPU'} ({name})" if name.startswith("sm_") else f"the {name}"
    if run.kind == "bench":
        return _listed(row.gpu for row in run.rows)
    gpus = Counter(run.environment.gpus if run.environment else ())
    if gpus:
        under = f", under {run.tool.tool}" if run.tool else ""
        return (
            _listed(f"{f'{number} x ' * (number > 1)}{name} ({arch})" for (name, arch), number in gpus.items()) + under
        )
    return ENGINES.get(engine(run), "")


def versions(run: Run) -> tuple[str, ...]:
    """Such as ("Triton 3.8.0", "torch 2.13.0", "driver 580.65", "commit 2b238f9f3853")."""
    return tuple(dict.fromkeys(_versions(run)))


def _versions(run: Run) -> Iterator[str]:
    if run.kind == "gates":
        yield from (f"Triton {gate_of(result.group)[1]}" for result in run.suite.results)
        yield from (found for result in run.suite.results if (found := result.properties.get("assembler")))
    elif run.kind == "golden":
        told = run.suite.properties
        shown = {"Triton": "triton", "torch": "torch", "": "assembler", "driver": "driver"}
        yield from (f"{name} {told[key]}".strip() for name, key in shown.items() if key in told)
    elif run.kind == "bench":
        yield from (f"Triton {row.triton}" for row in run.rows)
    if found := run.environment:
        shown = {"Triton": found.triton, "torch": found.torch, "": found.assembler, "driver": found.driver}
        yield from (f"{name} {value}".strip() for name, value in shown.items() if value)
        if found.commit:
            yield f"commit {found.commit[:12]}" + "+" * found.commit.endswith("+")


def _listed(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(word for word in words if word))
