"""ci/runners.json: which GPU runners there are. Needs jsonschema, neither torch nor triton."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ..contract.gpus import ARCHITECTURES, CATALOG, Gpu
from ..kernels.releases import check_target
from .gate_compile import arch_name

HOSTED = "ubuntu-24.04"  # GitHub's own machine, for all that needs no GPU
PATH = Path(__file__).resolve().parent / "runners.json"


class Unknown(Exception):
    """Something in the list of runners, or that is asked of it, is not there: what it is, and what it should be."""


@dataclass(frozen=True)
class Runner:
    """One kind of runner: so many (`shards`) machines with these `labels`, each with GPUs like `gpu`."""

    name: str
    gpu: str
    architecture: str
    tritons: tuple[str, ...]
    shards: int
    labels: tuple[str, ...]

    @property
    def kind(self) -> str:
        """As `ci.gpus` names the kind of a GPU: "NVIDIA H200 (sm_90)"."""
        return f"{self.gpu} ({self.architecture})"


def read(path: Path = PATH) -> tuple[Runner, ...]:
    """The runners of the file. Raises Unknown for what its schema, beside it, or the suite does not know."""
    import jsonschema

    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        jsonschema.validate(document, json.loads(path.with_suffix(".schema.json").read_text(encoding="utf-8")))
    except ValueError as error:
        raise Unknown(f"{path.name} should be JSON: {error}") from error
    except jsonschema.ValidationError as error:
        raise Unknown(f"{path.name} breaks its schema at {error.json_path}: {error.message}") from error
    entries = document["runners"]
    lists = ({"tritons": tuple(one["tritons"]), "labels": tuple(one["labels"])} for one in entries)
    runners = tuple(Runner(**one | more) for one, more in zip(entries, lists, strict=True))
    for runner in runners:
        _check(runner)
    for name, count in Counter(runner.name for runner in runners).items():
        if count > 1:
            raise Unknown(f"{path.name} has {count} entries with the name {name!r}, but each should have its own")
    return runners


def _check(runner: Runner) -> None:
    """The architecture, the GPU where the catalog has it, and every Triton are known, and go together."""
    found = {arch_name(capability): capability for capability in ARCHITECTURES}
    if runner.architecture not in found:
        raise Unknown(f"{runner.name}: architecture is {runner.architecture!r}, but should be of {', '.join(found)}")
    listed = {gpu.name: arch_name(gpu.capability) for gpu in CATALOG if gpu.backend == "cuda"}
    right = listed.get(runner.gpu, runner.architecture)
    if right != runner.architecture:
        raise Unknown(f"{runner.name}: architecture is {runner.architecture!r}, but that of {runner.gpu} is {right}")
    for triton in runner.tritons:
        try:
            check_target(Gpu(runner.gpu, found[runner.architecture]), triton)
        except ValueError as error:
            raise Unknown(f"{runner.name}: {error}") from error
