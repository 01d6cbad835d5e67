"""Runs steps: hosts, one for each Triton and engine, and the kernels of each point, in one temporary folder."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .bisect_found import Failure, place_in_dump
from .bisect_host import DUMP
from .bisect_step import ANSWER
from .golden_file import Refused

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("nvfp4_suite", "contract", "kernels", "ci")  # what steps import of today's tree
GRACE = 5  # seconds that a host has beyond a step's
LOG_LINES = 3


@dataclass(frozen=True)
class Point:
    """What a step judges: `kernels`, the git tree of a commit's kernels/ (None: today's), under a Triton.

    `id` is the commit's hash or the release, `name` short, `subject` the commit's. `triton` is the folder that has the
    release (None: installed), `release` what it must be (None: any).
    """

    id: str
    name: str
    subject: str = ""
    by: str = ""
    kernels: str | None = None
    triton: str | None = None
    release: str | None = None

    def __str__(self) -> str:
        return f"{self.name}  {self.subject}".rstrip()

    @property
    def key(self) -> tuple[str | None, str | None]:
        """Points of one key are the same to a step."""
        return self.kernels, self.triton


@dataclass(frozen=True)
class Answer:
    """What a step wrote, `{}` where it wrote nothing; how it `died` if it did; its folder."""

    values: dict
    died: Failure | None
    folder: Path
    seconds: float


class Trials:
    """Asks steps. Today's rooms are copied at the start, so that the tree may change while a bisect goes on.

    `work` is a folder of its own; `extract` writes the kernels/ of a git tree into a folder.
    """

    def __init__(self, work: Path, extract: Callable[[str, Path], None], seconds: float):
        self.work, self.extract, self.seconds = work, extract, seconds
        self._hosts: dict[tuple[str | None, str], Host] = {}
        self._asked = 0
        if not (ROOT / "pyproject.toml").exists():
            raise Refused(f"a bisect runs in a clone of the project, but {ROOT} is an installed package")
        self.today = work / "today"
        self.today.mkdir()
        shutil.copy(ROOT / "pyproject.toml", self.today)
        for room in ROOMS:
            shutil.copytree(ROOT / room, self.today / room, ignore=shutil.ignore_patterns("__pycache__"))

    def __enter__(self) -> "Trials":
        return self

    def __exit__(self, *exception) -> None:
        for host in self._hosts.values():
            host.close()

    def ask(self, point: Point, task: str, *, engine: str = "compiler", **request) -> Answer:
        """What the step `task` answers of `point`, in a process of its own. Raises Refused where there is no host."""
        self._asked += 1
        folder = self.work / f"step{self._asked}"
        folder.mkdir()
        kernels = self._kernels(point)
        request |= {"task": task, "kernels": str(kernels), "folder": str(folder), "seconds": self.seconds}
        host, start = self._host(point, engine), time.perf_counter()
        request["triton"] = host.release
        ended = host.ask(request)
        values = _read(folder / ANSWER)
        died = None if values else _death(ended, folder, kernels, self.seconds)
        return Answer(values, died, folder, time.perf_counter() - start)

    def release(self, point: Point) -> str:
        """The release of Triton that `point` is compiled by."""
        return self._host(point, "compiler").release

    def _kernels(self, point: Point) -> Path:
        if point.kernels is None:
            return self.today
        folder = self.work / point.kernels
        if not folder.exists():
            self.extract(point.kernels, folder)
        return folder

    def _host(self, point: Point, engine: str) -> "Host":
        key = point.triton, engine
        if key not in self._hosts:
            self._hosts[key] = Host(self.work, self.today, point, engine)
        return self._hosts[key]


class Host:
    """A running bisect_host.py: of `point`, the Triton; for which `engine`, as it has them."""

    def __init__(self, work: Path, today: Path, point: Point, engine: str):
        others = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one and Path(one) != ROOT]
        paths = [str(today), *([point.triton] if point.triton else []), *others]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        env.pop("TRITON_INTERPRET", None)
        if engine == "interpreter":
            env["TRITON_INTERPRET"] = "1"
        command = [sys.executable, "-P", "-m", f"{__package__}.bisect_host", str(work), engine]
        self._log = work / f"host{len(list(work.glob('host*')))}"
        with self._log.open("w") as log:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
            self._process = subprocess.Popen(command, cwd=work, env=env, text=True, start_new_session=True, **pipes)
        try:
            self.release = self._greeted(point)
        except Refused:
            self.close()
            raise

    def _greeted(self, point: Point) -> str:
        """The release that it has imported. Raises Refused for another than should be."""
        release = self._answer()["triton"].split("+")[0]
        if point.release and release != point.release:
            where = f"in {point.triton}" if point.triton else "installed"
            raise Refused(f"Triton {point.release} should be {where}, but {release} is; --packages V=DIR names others")
        return release

    def ask(self, request: dict) -> str | None:
        """Runs the step: how it ended, if not by itself."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()["ended"]

    def _answer(self) -> dict:
        line = self._process.stdout.readline()
        if not line:
            said = self._log.read_text().strip().splitlines()[-LOG_LINES:]
            raise Refused("a process that should run steps ended: " + " | ".join(said))
        return json.loads(line)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()


def _read(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return {}


def _death(ended: str | None, folder: Path, kernels: Path, seconds: float) -> Failure:
    """Why there is no answer: the step ran too long, or something ended its process."""
    dump = folder / DUMP
    place = place_in_dump(dump.read_text(), kernels) if dump.exists() else ""
    if ended == "hangs":
        return Failure("hangs", place, f"no answer after {seconds:g} s")
    return Failure(f"dies of {ended}" if ended else "ends without an answer", place)
