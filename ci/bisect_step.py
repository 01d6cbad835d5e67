"""What the process of one step does: runs the kernels of a point, and writes what came of it. See bisect_host.py.

`kernels/` is that of a commit, every other room today's. The kernels are reached through their registry and, for code
generation, through the gates; nothing else of them is imported, so that old ones may be written as they like.
"""

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from .bisect_found import failure_of

ANSWER = "answer.json"
OUTPUT = "output.safetensors"


class Unusable(Exception):
    """Why a point can be no subject."""


def step(request: dict) -> None:
    """Does `request["task"]` with the kernels in `request["kernels"]`/kernels; the answer is in its folder at once."""
    kernels = Path(request["kernels"])
    try:
        _use(kernels)
        answer = TASKS[request["task"]](request)
    except (ImportError, Unusable) as error:
        answer = {"unusable": f"{error}" if isinstance(error, Unusable) else f"{type(error).__name__}: {error}"}
    except BaseException as error:
        answer = {"failure": asdict(failure_of(error, kernels))}
    temporary = Path(request["folder"], f"{ANSWER}.tmp")
    temporary.write_text(json.dumps(answer))
    temporary.replace(temporary.with_suffix(""))


def _use(folder: Path) -> None:
    """Has `kernels` imported from `folder`, as the first place where the project's rooms are. Raises Unusable."""
    sys.modules[__package__.rpartition(".")[0]].__path__.insert(0, str(folder))
    from .. import kernels

    if Path(kernels.__file__).parent != folder / "kernels":
        raise Unusable("it has no package kernels/")


def list_kernels(request: dict) -> dict:
    """The names of the kernels that take the bundle's case on this engine."""
    from . import bundle

    case = bundle.read(Path(request["bundle"])).case
    return {"kernels": [kernel.name for kernel in _promised(request["capability"]) if kernel.promise.takes(case)]}


def _promised(capability: list[int] | None) -> Iterator:
    """The kernels for a GPU of `capability`, None for the interpreter."""
    from ..kernels.registry import KERNELS

    for kernel in KERNELS.values():
        there = kernel.promise.capabilities is None or tuple(capability or ()) in kernel.promise.capabilities
        if there if capability else kernel.promise.interpreted:
            yield kernel


def run_case(request: dict) -> dict:
    """Runs the kernel on the bundle's inputs. The output is in OUTPUT, the answer what the kernel says of itself.

    What a kernel leaves unwritten is NaN, not what happens to be there.
    """
    import torch
    from safetensors.torch import save_file

    from . import bundle

    given = bundle.read(Path(request["bundle"]))
    kernels = {one.name: one for one in _promised(request["capability"]) if one.promise.takes(given.case)}
    if request["kernel"] not in kernels:
        raise Unusable(f"no kernel {request['kernel']} takes the case, but {', '.join(kernels) or 'none'}")
    kernel = kernels[request["kernel"]]
    torch.set_deterministic_debug_mode("warn")  # fills what is allocated; use_deterministic_algorithms takes seconds
    inputs = given.inputs.to("cuda" if request["capability"] else "cpu")
    prepared = kernel.prepare(inputs.banks)
    output = kernel.run(prepared, inputs.hidden_states, inputs.topk_weights, inputs.topk_ids, **given.case.options)
    save_file({"output": output.cpu().contiguous()}, Path(request["folder"], OUTPUT))
    return {"rounding": kernel.promise.rounding, "orderfree_rounding": kernel.promise.orderfree_rounding}


def compile_launch(request: dict) -> dict:
    """The facts of the launch `id`, or why it does not compile, and the launch itself."""
    from . import gate_compile

    launch = _listed(request)
    answer = {"launch": asdict(launch)}
    try:
        return answer | {"facts": gate_compile.compile_launch(launch, tuple(request["capability"])).as_json()}
    except gate_compile.GateError as error:
        return answer | {"error": str(error)}


def _listed(request: dict):
    """The launch as the gates list it for these kernels; else as they list it for today's."""
    from ..kernels.launch import Launch

    capability, listed = tuple(request["capability"]), ()
    with contextlib.suppress(ImportError):  # the list knows more of kernels/ than old ones have
        from . import gates

        listed = gates.launches(request["triton"], (capability,))
    for one in listed:
        if gates.launch_id(*one) == request["id"]:
            return one[1]
    if request["launch"] is None:
        raise Unusable(f"no gate lists {request['id']}, neither for these kernels nor for today's")
    return Launch(**launch_fields(request["launch"]))


def launch_fields(told: dict) -> dict:
    """The fields of a Launch from JSON, which has lists for tuples."""
    pairs = {name: tuple(map(tuple, told[name])) for name in ("arguments", "constexprs")}
    return told | pairs | {"divisible": tuple(told["divisible"])}


def plan_case(request: dict) -> dict:
    """The launches of the case's plan, and of each a key that its binary for `capability` depends on."""
    from . import gate_cache

    launches = _planned(request)
    keys = {launch.stage: gate_cache.key(launch, tuple(request["capability"])) for launch in launches}
    return {"launches": [asdict(launch) for launch in launches], "keys": keys}


def compile_plan(request: dict) -> dict:
    """By stage, the facts of the plan's launches that `stages` names, or why there are none."""
    from . import codegen, gate_compile

    found = {}
    for launch in _planned(request):
        if launch.stage in request["stages"]:
            try:
                facts = gate_compile.compile_launch(launch, tuple(request["capability"]))
                found[launch.stage] = codegen.described(facts)
            except gate_compile.GateError as error:
                found[launch.stage] = str(error)
    return {"facts": found}


def _planned(request: dict) -> tuple:
    from ..contract.gpus import Gpu
    from ..contract.shapes import LayerShape
    from ..kernels.plan import plan_layer

    gpu = dict(request["gpu"])
    capability = gpu.pop("capability")
    gpu = Gpu(capability=capability and tuple(capability), **gpu)
    return plan_layer(gpu, LayerShape(**request["shape"]), request["tokens"], **request["options"]).launches


TASKS = {one.__name__: one for one in (list_kernels, run_case, compile_launch, plan_case, compile_plan)}
