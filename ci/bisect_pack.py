"""A history in one file, for a host that has a GPU, but no git: what there is between two commits, and their kernels/.

`Packed` reads what `pack` wrote, and answers as bisect_history.Repository does.
"""

import itertools
import json
import tarfile
import tempfile
from dataclasses import asdict
from pathlib import Path

from .bisect_history import Commit, History, Repository
from .golden_file import Refused

FORMAT = 1
_CONTENTS = "history.json"


def pack(path: Path, repository: Repository, history: History) -> int:
    """Writes `path`, whole or not at all; how many commits have their kernels/ in it."""
    before = {one: repository.parents(one) for one in history.parents}
    ends = history.good, history.bad
    commits = [*ends, *map(repository.commit, history.parents), *itertools.chain(*before.values())]
    told = {
        "format": FORMAT,
        "good": history.good.id,
        "bad": history.bad.id,
        "parents": history.parents,
        "before": {one: [each.id for each in some] for one, some in before.items()},
        "commits": {one.id: asdict(one) for one in commits},
    }
    temporary = path.with_name(f"{path.name}.tmp")
    with tempfile.TemporaryDirectory(prefix="nvfp4-bisect-") as work, tarfile.open(temporary, "w:gz") as archive:
        Path(work, _CONTENTS).write_text(json.dumps(told), encoding="utf-8")
        archive.add(Path(work, _CONTENTS), _CONTENTS)
        for tree in {one.tree for one in commits}:
            repository.extract(tree, Path(work, tree))
            archive.add(Path(work, tree), tree)
    temporary.replace(path)
    return len(told["commits"])


class Packed:
    """The history in the file `path`. Raises Refused for what `pack` did not write."""

    def __init__(self, path: Path):
        self.path = path
        try:
            with tarfile.open(path) as archive:
                told = json.load(archive.extractfile(_CONTENTS))
            if told["format"] != FORMAT:
                raise ValueError(f"its format is {told['format']}, not {FORMAT}")
        except (OSError, KeyError, ValueError, tarfile.TarError) as error:
            raise Refused(f"--packed is {path}, but should be a file that --pack wrote: {error}") from error
        self._commits = {id: Commit(**values) for id, values in told["commits"].items()}
        self._before = told["before"]
        parents = {id: tuple(before) for id, before in told["parents"].items()}
        self.history = History(self._commits[told["good"]], self._commits[told["bad"]], parents)

    def commit(self, id: str) -> Commit:
        return self._commits[id]

    def parents(self, id: str) -> list[Commit]:
        return [self._commits[one] for one in self._before[id]]

    def extract(self, tree: str, folder: Path) -> None:
        """The files of `tree`, one of kernels/, as FOLDER/kernels."""
        with tarfile.open(self.path) as archive:
            for member in archive:
                if member.name.startswith(f"{tree}/"):
                    member.name = member.name.partition("/")[2]
                    archive.extract(member, folder, filter="data")
