"""A GitHub that is not there: `gh` on the PATH is tests/workflows/fake_gh.py."""

import json
import os
import sys
from pathlib import Path

FAKE = Path(__file__).with_name("fake_gh.py")


class GitHub:
    """Its state is a file in `folder`; `environment` makes a process see it."""

    def __init__(self, folder: Path, **state):
        self._file = folder / "github.json"
        self._file.write_text(json.dumps({"issues": [], "runs": [], "calls": []} | state))
        program = folder / "bin" / "gh"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
        program.chmod(0o755)
        path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {"FAKE_GITHUB": str(self._file), "PATH": path}

    @property
    def state(self) -> dict:
        return json.loads(self._file.read_text())

    @property
    def issues(self) -> list[dict]:
        return self.state["issues"]

    def change(self, number: int, **values) -> None:
        """What a person does to an issue."""
        state = self.state
        state["issues"][number - 1] |= values
        self._file.write_text(json.dumps(state))
