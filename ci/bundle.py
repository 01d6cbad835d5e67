"""A failure on disk, to look at and to run again on another machine: `python -m nvfp4_suite replay BUNDLE`.

A bundle is a folder: bundle.json says which case, by which kernel, what was wrong and where, also as counts in a grid
(see wrong_cells.py); inputs.safetensors, where it is small, has the tensors, in case that they are drawn otherwise by
then; ptx/ has what the GPU ran.
"""

import json
import re
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from ..contract.banks import ExpertBanks
from ..contract.case import Case, Inputs, random_inputs
from ..contract.kernel import Kernel
from ..contract.shapes import LayerShape
from .files import write_json

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
SMALL = 16 * 2**20  # bytes of a layer's banks up to which they are kept


@dataclass(frozen=True)
class Bundle:
    """One failure. `kernel` is a registered name, None where the test ran a plan or a stage of its own.

    `wrong` is what wrong_cells.counts makes of the wrong elements; None where no judge said which they are.
    """

    test: str
    case: Case
    kernel: str | None
    failure: str
    environment: dict
    inputs: Inputs | None = None
    wrong: dict | None = None


def write(folder: Path, bundle: Bundle, ptx: dict[str, str]) -> Path:
    """Writes `bundle` as a folder in `folder`, and `ptx` by name of the launch. The folder is named for the test."""
    path = folder / re.sub(r"[^\w.=-]+", "_", bundle.test)[-200:]
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / "bundle.json", _plain(bundle))
    if bundle.inputs:
        from safetensors.torch import save_file

        save_file(_tensors(bundle.inputs), path / "inputs.safetensors")
    for name, text in ptx.items():
        (path / "ptx").mkdir(exist_ok=True)
        (path / "ptx" / f"{name}.ptx").write_text(text)
    return path


def read(path: Path) -> Bundle:
    """The bundle in the folder `path`. Raises ValueError where there is none that this version can read."""
    file = path / "bundle.json"
    if not file.is_file():
        raise ValueError(f"{path} is no bundle: it has no bundle.json")
    plain = json.loads(file.read_text())
    if plain.pop("format") != FORMAT:
        raise ValueError(f"{file} has another format than {FORMAT}, of another version of the suite")
    case = Case(LayerShape(**plain["case"].pop("shape")), **plain["case"])
    told = {name: plain[name] for name in ("test", "kernel", "failure", "environment")}
    return Bundle(case=case, inputs=_stored(path / "inputs.safetensors"), wrong=plain.get("wrong"), **told)


def inputs_of(case: Case) -> Inputs:
    """The case's inputs as they are drawn today, on the CPU."""
    from ..reference.draws.layer import draw

    return random_inputs(case) if case.inputs == "random" else draw(case)


def small_inputs(case: Case) -> Inputs | None:
    """The case's inputs if they are SMALL."""
    shape = case.shape
    banks = shape.experts * 3 * shape.intermediate * shape.hidden * 9 // 16
    return inputs_of(case) if banks <= SMALL else None


def ptx_of(kernel: Kernel, case: Case) -> dict[str, str]:
    """What the GPU runs of `case` by `kernel`, by stage: it is run once more, from binaries that are there already."""
    binaries: dict[str, str] = {}
    inputs = inputs_of(case).to("cuda")
    with ExitStack() as stack:
        for module in _starting():
            stack.enter_context(patch.object(module, "start", _recording(module.start, binaries)))
        tensors = (inputs.hidden_states, inputs.topk_weights, inputs.topk_ids)
        kernel.run(kernel.prepare(inputs.banks), *tensors, **case.options)
    return binaries


def _starting() -> list:
    """The modules of kernels/ that start launches."""
    ours = f"{__package__.rpartition('.')[0]}.kernels."
    return [module for name, module in sys.modules.items() if name.startswith(ours) and "start" in vars(module)]


def _recording(start, binaries: dict[str, str]):
    def record(launch, *arguments, **named):
        binary = start(launch, *arguments, **named)
        binaries[launch.stage] = binary.asm["ptx"]
        return binary

    return record


def _plain(bundle: Bundle) -> dict:
    told = {name: getattr(bundle, name) for name in ("test", "kernel", "failure", "environment", "wrong")}
    repro = ["python -m nvfp4_suite replay THIS_FOLDER", f"nox -s gpu-tests -- --case {bundle.case.id}"]
    return {"format": FORMAT, "id": bundle.case.id, "case": asdict(bundle.case), **told, "repro": repro}


def _tensors(inputs: Inputs) -> "dict[str, Tensor]":
    """Every tensor by name; the banks' with "banks." before."""
    banks = {f"banks.{name}": tensor for name, tensor in vars(inputs.banks).items() if tensor is not None}
    return banks | {name: getattr(inputs, name) for name in ("hidden_states", "topk_weights", "topk_ids")}


def _stored(path: Path) -> Inputs | None:
    if not path.is_file():
        return None
    from safetensors.torch import load_file

    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}  # the file's may not be aligned
    banks = {name.removeprefix("banks."): tensors.pop(name) for name in list(tensors) if name.startswith("banks.")}
    return Inputs(banks=ExpertBanks(**banks), **tensors)
