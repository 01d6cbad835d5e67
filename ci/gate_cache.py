"""Facts of launches that were compiled before, found by everything that they depend on.

One small JSON file a launch. A file appears whole or not at all, is believed only with its own digest, and is never
changed: runs beside each other, a run that was killed, a full disk and a damaged file cost time, nothing else.
"""

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from functools import cache
from pathlib import Path

from ..kernels.launch import Launch, device_function
from .gate_facts import SCHEMA, Capability, Facts

VARIABLE = "NVFP4_GATE_CACHE"  # a directory, or "off"


def default_directory() -> Path | None:
    """What VARIABLE says, or a folder in the user's cache directory; None where it is off."""
    named = os.environ.get(VARIABLE)
    if named == "off":
        return None
    return Path(named or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "nvfp4-suite", "gates"))


def key(launch: Launch, capability: Capability, head: Capability | None = None) -> str:
    """A digest of all that the facts of `launch` on `capability` depend on; imports triton.

    The sources of the device function and of all that it calls, the launch without its stage and the instruction that
    it expects, the capability, Triton's version and own files, the assembler, and what facts mean. `head` is the
    capability whose PTX is assembled, None for a launch that is compiled as a whole.
    """
    binary = (launch.arguments, launch.divisible, launch.constexprs)
    options = (launch.num_warps, launch.num_stages, launch.fp_fusion)
    parts = (SCHEMA, launch.kernel, device_function(launch).cache_key, binary, options, capability, head)
    return hashlib.sha256(repr((*parts, _toolchain(capability))).encode()).hexdigest()


@cache
def _toolchain(capability: Capability) -> tuple:
    import triton
    from triton.backends.nvidia.compiler import get_ptxas
    from triton.runtime.cache import triton_key

    tool = get_ptxas(10 * capability[0] + capability[1])
    return triton.__version__, triton_key(), str(tool.path), tool.version, Path(tool.path).stat().st_size


class Cache:
    """Facts by key under `directory`; with None nothing is found and nothing is kept."""

    def __init__(self, directory: Path | None):
        self.directory = directory

    def get(self, key: str) -> Facts | None:
        """None for what is not there, cannot be read or is damaged."""
        if self.directory is None:
            return None
        try:
            entry = json.loads(self._path(key).read_text(encoding="utf-8"))
            return Facts.from_json(entry["facts"]) if entry["digest"] == _digest(key, entry["facts"]) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, key: str, facts: Facts) -> None:
        """Keeps `facts`, or says on stderr why not."""
        if self.directory is None:
            return
        values = facts.as_json()
        text = json.dumps({"digest": _digest(key, values), "facts": values}, sort_keys=True)
        try:
            self._write(self._path(key), text)
        except OSError as error:
            with contextlib.suppress(OSError):  # stderr may be a file on the same disk
                print(f"compile gates: {self.directory} keeps nothing: {error}", file=sys.stderr)

    def _path(self, key: str) -> Path:
        return self.directory / key[:2] / f"{key[2:]}.json"

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


def _digest(key: str, values: dict) -> str:
    return hashlib.sha256((key + json.dumps(values, sort_keys=True)).encode()).hexdigest()
