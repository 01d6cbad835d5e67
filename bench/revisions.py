"""The kernels/ of another revision or folder beside today's, in one process, under another package name.

It takes kernels/ alone, as a bisect does: inside this package, so that what these import of contract/ is today's, and
both run on the same ExpertBanks.
"""

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = __package__.rpartition(".")[0]


@dataclass(frozen=True)
class Kernels:
    """A kernels/: the package that it is, and `source`, which names it; "" is today's."""

    package: str = f"{ROOT}.kernels"
    source: str = ""

    def __getattr__(self, name: str) -> ModuleType:
        """The module `name` of it: `kernels.plan`. Raises AttributeError for one that it does not have."""
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return importlib.import_module(f"{self.package}.{name}")
        except ModuleNotFoundError as error:
            raise AttributeError(f"{self.source or 'kernels/'} has no module {name}: {error}") from error


TODAY = Kernels()


def from_folder(folder: Path, source: str | None = None) -> Kernels:
    """The kernels in `folder`/kernels, or in `folder` itself; their files must stay where they are.

    Raises ValueError where there are none, and for those that this benchmark cannot reach.
    """
    folder = folder.resolve()
    home = folder / "kernels" if (folder / "kernels" / "registry.py").is_file() else folder
    if not (home / "registry.py").is_file():
        raise ValueError(f"--against-folder is {folder}, but should be a kernels/ of this project, or have one in it")
    beside = f"{ROOT}.kernels_beside_{sum(name.startswith(f'{ROOT}.kernels_beside_') for name in sys.modules)}"
    where = {"submodule_search_locations": [str(home)]}
    spec = importlib.util.spec_from_file_location(beside, home / "__init__.py", **where)
    sys.modules[beside] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[beside])
    kernels = Kernels(beside, source or str(folder))
    try:
        kernels.registry.KERNELS, kernels.plan.plan_layer, kernels.tiles.Tile, kernels.experts.run  # noqa: B018
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"the kernels at {kernels.source} are none that can be timed beside today's: {error}"
        ) from error
    return kernels


def from_revision(revision: str, root: Path, work: Path) -> Kernels:
    """Those of a git revision of the repository `root`, written into the folder `work`, which must stay.

    Raises ci.golden_file.Refused where there is no git, or no such revision.
    """
    from ..ci.bisect_history import Repository

    repository = Repository(root)
    commit = repository.commit(revision, "--against-revision")
    repository.extract(commit.tree, work)
    return from_folder(work, commit.name)
