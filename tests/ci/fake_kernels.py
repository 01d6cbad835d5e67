"""Kernels that do one thing wrong, as rooms kernels/ that a step can take, and the case that they are run on."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from nvfp4_suite.ci.bisect_subject import CaseSubject
from nvfp4_suite.ci.bisect_trial import Point, Trials
from nvfp4_suite.contract.case import Case
from nvfp4_suite.contract.shapes import LayerShape

CASE = Case(LayerShape(2, 1, 16, 16), 3)

_REGISTRY = """
import os, subprocess, sys, time
import torch
from safetensors.torch import load_file
from ..contract import gpus
from ..contract.kernel import Promise

def right():
    return load_file({right!r})["output"].clone()

def elsewhere():
    raise ValueError("5 is not 6")

class Fake:
    name = "fake"
    promise = Promise({promise})

    def prepare(self, banks):
        return banks

    def run(self, prepared, hidden_states, topk_weights, topk_ids, **options):
        {body}

KERNELS = {{"fake": Fake()}}
{after}
"""

BODIES = {
    "right": "return right()",
    "wrong": "return right() + 1",
    "worse": "return right() + 2",
    "unwritten": "return right() + torch.empty(9).isnan().all()",  # wrong where what is not written is NaN
    "raises": 'raise ValueError("3 is not 4")',
    "raises elsewhere": "elsewhere()",
    "raises another": 'raise KeyError("3 is not 4")',
    "raises by a cause": "\n        ".join(
        ["try:", "    elsewhere()", "except ValueError as error:", "    raise RuntimeError('wrapped') from error"]
    ),
    "says more": 'raise ValueError("3 is not 4, alas")',
    "aborts": "os.abort()",
    "leaves": "os._exit(0)",
    "leaves badly": "os._exit(3)",
    "exits": "sys.exit(0)",
    "hangs": "time.sleep(999)",
    "leaves a child": 'subprocess.Popen(["sleep", "987"]); return right()',
    "leaves marks": "\n        ".join(
        [
            "cache = os.environ['TRITON_CACHE_DIR']",
            "assert not os.path.exists(cache) and not hasattr(gpus, 'mark') and '/today/' in gpus.__file__",
            "os.mkdir(cache); gpus.mark = True",
            "return right()",
        ]
    ),
}
PROMISES = {"takes no bf16": 'dtypes=("fp16",)', "rounds as nothing else": 'rounding="new"'}
AFTER = {
    "needs what is no more": "from ..contract.kernel import Nothing",
    "does not compile": "def broken(:",
    "has no kernel": "KERNELS = {}",
}


def write(name: str, folder: Path, right: Path) -> None:
    """The kernels `name`, of one of the tables above, as FOLDER/kernels; `right` holds the right output."""
    (folder / "kernels").mkdir(parents=True)
    if name == "no package":
        return
    (folder / "kernels/__init__.py").touch()
    body, promise, after = BODIES.get(name, BODIES["right"]), PROMISES.get(name, ""), AFTER.get(name, "")
    text = _REGISTRY.format(right=str(right), promise=promise, body=body, after=after)
    (folder / "kernels/registry.py").write_text(text)


def point(name: str, number: int = 0) -> Point:
    """The point of a history that has the kernels `name`."""
    return Point(f"{number} {name}", f"{number}", name, kernels=name)


def subject(work: Path, seconds: float) -> CaseSubject:
    """CASE by the fakes; `close` its trials."""
    right = work / "right.safetensors"
    trials = Trials(work, lambda name, folder: write(name, folder, right), seconds)
    found = CaseSubject(trials, work, CASE, "fake", None)
    save_file({"output": found.truth.bits("w4a16").to(torch.bfloat16)}, right)
    return found
