"""The small JSON files that a session leaves beside its results, read with suspicion. Pure."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Environment:
    """environment.json, which ci/host.py writes: `gpus` are (name, "sm_90"); what is None was not there."""

    gpus: tuple[tuple[str, str], ...]
    triton: str | None
    torch: str | None
    driver: str | None
    assembler: str | None
    commit: str | None
    sources: str | None

    @classmethod
    def of(cls, plain: dict) -> "Environment":
        names = ("triton", "torch", "driver", "assembler", "commit", "sources")
        return cls(tuple(map(_gpu, _each(plain, "gpus"))), *(_value(plain, name, str, None) for name in names))


@dataclass(frozen=True)
class Session:
    """session.json, which tests/session_checks.py writes. `whole`: nobody chose among its tests by hand."""

    engine: str
    tier: str
    whole: bool
    exit: int
    problems: tuple[str, ...]

    @classmethod
    def of(cls, plain: dict) -> "Session":
        kinds = {"engine": str, "tier": str, "whole": bool, "exit": int}
        return cls(*(_value(plain, name, kind) for name, kind in kinds.items()), _texts(plain, "problems"))


@dataclass(frozen=True)
class Tool:
    """sanitizer.json, which ci/sanitizer.py writes: a tool's name, and what is wrong with its run."""

    tool: str
    problems: tuple[str, ...]

    @classmethod
    def of(cls, plain: dict) -> "Tool":
        return cls(_value(plain, "tool", str), _texts(plain, "problems"))


@dataclass(frozen=True)
class Manifest:
    """manifest.json, which tests/manifest.py writes: a session was part `group` of `splits`; ci/owed.py reads more."""

    group: int
    splits: int

    @classmethod
    def of(cls, plain: dict) -> "Manifest":
        shard = _each(plain, "shard")
        if len(shard) != 2 or not all(type(number) is int for number in shard):
            raise ValueError(f"shard is {shard!r:.80}, but should be two numbers")
        return cls(*shard)


Record = Environment | Session | Tool | Manifest

KINDS = {
    "environment.json": Environment,
    "session.json": Session,
    "sanitizer.json": Tool,
    "manifest.json": Manifest,
}


def read(path: Path) -> Record:
    """The record that a file of this name is. Raises ValueError, naming the key, for what nothing of ours wrote."""
    plain = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(plain, dict):
        raise ValueError(f"it is a {type(plain).__name__}, but should be an object")
    return KINDS[path.name].of(plain)


_REQUIRED = object()


def _value(plain: dict, name: str, kind: type, default: object = _REQUIRED):
    value = plain.get(name, default)
    if value is default and default is not _REQUIRED:
        return default
    if type(value) is not kind:
        found = "missing" if name not in plain else f"{value!r:.80}"
        raise ValueError(f"{name} is {found}, but should be a {kind.__name__}")
    return value


def _each(plain: dict, name: str) -> list:
    return _value(plain, name, list)


def _texts(plain: dict, name: str) -> tuple[str, ...]:
    if not all(isinstance(one, str) for one in _each(plain, name)):
        raise ValueError(f"{name} should hold texts only")
    return tuple(plain[name])


def _gpu(plain: object) -> tuple[str, str]:
    if not isinstance(plain, dict):
        raise ValueError(f"gpus holds {plain!r:.80}, but should hold objects")
    capability = _each(plain, "capability")
    if len(capability) != 2 or not all(type(number) is int for number in capability):
        raise ValueError(f"capability is {capability!r:.80}, but should be two numbers")
    return _value(plain, "name", str), "sm_{}{}".format(*capability)
