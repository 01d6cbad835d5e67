"""The smoke tier under compute-sanitizer: memcheck finds accesses out of bounds, racecheck races in shared memory.

A tool that is missing, or that does not see a planted fault on this host, has tested nothing: UNTESTED, which fails.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .files import write_json

TOOLS = ("memcheck", "racecheck")
CASES = ("tests/moe/test_orderfree.py", "tests/moe/test_random.py")  # every case by every kernel, every card's tiles
RECORD = "sanitizer.json"
LIMIT = 3600  # seconds for all tests, which take an H200 one or two minutes: a tool has hung before the first of them
VARIABLE = "NVFP4_SUITE_SANITIZER"  # names the tool that a test runs under

ROOT = Path(__file__).resolve().parent.parent
_ERROR = re.compile(r"^=+ (?:Error: |Warning: )?((?:Invalid|Misaligned|Race|Potential|Internal|Out-of-range)\b.*)")
_AT = re.compile(r"\bat (?:0x[0-9a-f]+ in )?(\w+)")  # "at kernel+0x70", or "at 0x70 in kernel" of older releases
_SUMMARY = re.compile(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d+)")


@dataclass(frozen=True)
class Finding:
    """One report of a tool: what it says first, and the kernel that it names."""

    what: str
    kernel: str

    def __str__(self) -> str:
        return f"{self.kernel}: {self.what}"


@dataclass(frozen=True)
class Known:
    """Findings that are no fault of a kernel: `what` is a regular expression, `reason` says how this is known."""

    tool: str
    what: str
    kernel: str
    reason: str

    def covers(self, tool: str, finding: Finding) -> bool:
        return self.tool == tool and self.kernel == finding.kernel and re.search(self.what, finding.what) is not None


BASELINE: tuple[Known, ...] = ()


def findings(log: str) -> list[Finding]:
    """The reports of a tool's log, in their order."""
    found: list[Finding] = []
    lines = log.splitlines()
    for place, line in enumerate(lines):
        if match := _ERROR.match(line):
            at = (_AT.search(near) for near in lines[place : place + 4])
            found.append(Finding(match[1].strip(), next((one[1] for one in at if one), "no kernel")))
    return found


def reported(log: str) -> int | None:
    """How many errors a log says that there were; None where the tool came to no end."""
    counts = [int(match[1]) for line in log.splitlines() if (match := _SUMMARY.match(line))]
    return sum(counts) if counts else None


def verdict(tool: str, logs: dict[str, str], tests: int, baseline: tuple[Known, ...] = BASELINE) -> list[str]:
    """What is wrong with a run, a line each: `logs` by name, `tests` pytest's exit code. Nothing: the run is clean."""
    problems = []
    for name, log in logs.items():
        every = findings(log)
        new = [one for one in every if not any(known.covers(tool, one) for known in baseline)]
        problems += [f"{tool.upper()}: {one}" for one in dict.fromkeys(new)]
        if (reported(log) or 0) and not every:
            problems.append(f"{tool.upper()}: {name} counts {reported(log)} errors, of which none could be read")
    for known in baseline:
        if known.tool == tool and not any(known.covers(tool, one) for log in logs.values() for one in findings(log)):
            problems.append(f"NOT SEEN: {known.kernel}: {known.what}; take it off the baseline")
    if not any(reported(log) is not None for log in logs.values()):
        problems.append(f"UNTESTED: {tool} came to no end in any process")
    if tests:
        problems.append(f"TESTS FAILED under {tool}: exit code {tests}")
    return problems


def run(tool: str, artifacts: Path, rest: list[str], env: dict[str, str]) -> int:
    """Runs the smoke tier under `tool`; 0 if the tool works here, the tests pass and it found nothing new.

    What is wrong is printed, and left in `artifacts` for a report.
    """
    (artifacts / RECORD).unlink(missing_ok=True)
    problems = _unable(tool, artifacts, env) or _run(tool, artifacts, rest, env)
    write_json(artifacts / RECORD, {"tool": tool, "problems": problems})
    print("\n".join(problems) or f"{tool}: clean", flush=True)
    return 1 if problems else 0


def _unable(tool: str, artifacts: Path, env: dict[str, str]) -> list[str]:
    """Why `tool` tests nothing on this host: it is not there, or is blind to a fault that is."""
    if not shutil.which("compute-sanitizer", path=env.get("PATH")):
        return [f"UNTESTED: {tool}: compute-sanitizer is not on the PATH; CUDA's toolkit has it"]
    planted = [sys.executable, "-m", "nvfp4_suite.ci.sanitizer_control", tool]
    logs, _ = _under(tool, artifacts / "control", planted, env, seconds=300)
    if not any(findings(log) for log in logs.values()):
        said = " / ".join(line for log in logs.values() for line in log.splitlines()[:3])
        return [f"UNTESTED: {tool} does not see a planted fault on this host: {said or 'it wrote nothing'}"]
    return []


def _run(tool: str, artifacts: Path, rest: list[str], env: dict[str, str]) -> list[str]:
    from .gpu_tests import command

    env = env | {VARIABLE: tool, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # an allocation ends where its tensor ends
    tests = command(artifacts, "smoke", ["--timeout=1800", *rest, *(() if _names_tests(rest) else CASES)])
    logs, code = _under(tool, artifacts / "logs", tests, env, seconds=LIMIT)
    return verdict(tool, logs, code)


def _names_tests(arguments: list[str]) -> bool:
    return any((ROOT / one.partition("::")[0]).exists() for one in arguments)


def _under(
    tool: str, folder: Path, command: list[str], env: dict[str, str], seconds: float | None = None
) -> tuple[dict[str, str], int]:
    """Runs `command` and its children under `tool`; the logs by name, one a process, and the exit code.

    What takes longer than so many `seconds` is ended.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    paths = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    options = ["--tool", tool, "--target-processes", "all", "--report-api-errors", "no", "--print-limit", "1000"]
    options += ["--log-file", str(folder / "%p.log")]
    whole = ["compute-sanitizer", *options, *command]
    code = _whole_group(whole, env | {"PYTHONPATH": paths}, seconds)
    return {path.name: path.read_text(errors="replace") for path in sorted(folder.iterdir())}, code


def _whole_group(command: list[str], env: dict[str, str], seconds: float | None) -> int:
    """The exit code of `command`; none of its children outlives it. Tests whose tool has crashed would hold the GPU."""
    with subprocess.Popen(command, env=env, cwd=ROOT, start_new_session=True) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return 1
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
