"""Facts of launches that were compiled before, and known failures, found by everything that they depend on.

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


def failure_key(launch: Launch, capability: Capability) -> str:
    """As of the facts, and of the launch's name, which the text of a failure has."""
    return hashlib.sha256(f"{key(launch, capability)} {launch.label}".encode()).hexdigest()


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
        values = self._get(key, "facts")
        try:
            return Facts.from_json(values) if isinstance(values, dict) else None
        except (ValueError, TypeError):
            return None

    def put(self, key: str, facts: Facts) -> None:
        """Keeps `facts`, or says on stderr why not."""
        self._put(key, "facts", facts.as_json())

    def get_failure(self, key: str) -> str | None:
        """As `get`, of why a launch does not compile."""
        error = self._get(key, "failure")
        return error if isinstance(error, str) else None

    def put_failure(self, key: str, error: str) -> None:
        """As `put`. For what fails in the same way each time."""
        self._put(key, "failure", error)

    def _get(self, key: str, name: str) -> object:
        if self.directory is None:
            return None
        try:
            entry = json.loads(self._path(key).read_text(encoding="utf-8"))
            return entry[name] if entry["digest"] == _digest(key, entry[name]) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _put(self, key: str, name: str, value: object) -> None:
        if self.directory is None:
            return
        text = json.dumps({"digest": _digest(key, value), name: value}, sort_keys=True)
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


def _digest(key: str, value: object) -> str:
    return hashlib.sha256((key + json.dumps(value, sort_keys=True)).encode()).hexdigest()
