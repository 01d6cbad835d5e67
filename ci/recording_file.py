"""A recording on its way: what a host without git computed, for a checkout of the same sources to merge."""

import dataclasses
import json
from pathlib import Path

from . import golden_file
from .outcomes import Outcome, Recording, Refused


def write(path: Path, found: Recording) -> None:
    """Replaces `path` at once."""
    document = golden_file.checked(dataclasses.asdict(found))
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    temporary.replace(path)


def read(path: Path, sources: str) -> Recording:
    """The recording in `path`. Raises Refused unless it is one, as it was written, from these `sources`."""
    try:
        found = golden_file.unchecked(path, golden_file.load(path))
        recorded = {name: Outcome(**outcome) for name, outcome in found.pop("recorded").items()}
        recording = Recording(**found, recorded=recorded)
    except golden_file.Damaged as error:
        raise Refused(f"{path} should be a file as record --out wrote it, but {error.what}") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise Refused(f"{path} should be a file as record --out wrote it, but lacks {error}") from error
    if recording.sources != sources:
        raise Refused(f"{path.name} was made from the sources {recording.sources}, but this tree's are {sources}")
    return recording
