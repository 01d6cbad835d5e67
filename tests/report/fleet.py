"""Folders of results as a fleet of runners leaves them, written by hand: what the suite's own tools would write."""

import json
import xml.etree.ElementTree as xml
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from nvfp4_suite.ci import gates
from nvfp4_suite.ci.plans import CARDS
from nvfp4_suite.ci.report import subjects
from nvfp4_suite.contract.gpus import Gpu, architecture
from nvfp4_suite.kernels.launch import Launch
from nvfp4_suite.kernels.plan import plan_layer

H200 = ("NVIDIA H200", (9, 0))
RTX_5090 = ("NVIDIA GeForce RTX 5090", (12, 0))
CASE = "orderfree-e8k4h272i80-t33-random-silu-bf16"
TEST = "tests.moe.test_orderfree"
JUDGED = f"""the output differs from the expected bits in 1188 of 8976 elements
case         {CASE}
kernel       prefill_w4a16
wrong        1188 of 8976 elements: 58 by one ulp, 0 in the sign of zero, at most 32403 ulps
actual       0 NaN, 0 inf, 1 zeros, largest 126
expected     0 NaN, 0 inf, 2 zeros, largest 0.0732422
difference   RMS 322 of the expected RMS; best factor 28.92040
first        [1, 64]  0.00161743    0x3AD4  expected  0.00402832    0x3B84  176 ulps
pattern      all 1188 wrong elements are in columns 64 to 127, from a multiple of 64
             all 18 wrong rows are tokens of expert 3, and all 18 such rows are wrong
repro        nox -s gpu-tests -- --case {CASE}
environment  torch 2.11.0+cu130, Python 3.12.3, NVIDIA H200"""


@dataclass
class Result:
    """One test case of a JUnit file."""

    name: str
    kernel: str | None = None
    failure: str | None = None
    skip: str | None = None
    group: str = TEST
    text: str = ""
    properties: dict[str, str] = field(default_factory=dict)


def write_junit(path: Path, results: list[Result], suite: str = "pytest", **properties: str) -> Path:
    """A JUnit file of one suite; `properties` are the suite's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    root = xml.Element("testsuites")
    parent = xml.SubElement(root, "testsuite", name=suite, tests=str(len(results)))
    _add_properties(parent, properties)
    for one in results:
        case = xml.SubElement(parent, "testcase", classname=one.group, name=one.name, time="1.5")
        _add_properties(case, one.properties | ({"kernel": one.kernel} if one.kernel else {}))
        if one.failure is not None:
            xml.SubElement(case, "failure", message=one.failure).text = one.text
        if one.skip is not None:
            xml.SubElement(case, "skipped", type="pytest.skip", message=one.skip)
    xml.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
    return path


def _add_properties(parent: xml.Element, properties: dict[str, str]) -> None:
    if properties:
        inside = xml.SubElement(parent, "properties")
        for name, value in properties.items():
            xml.SubElement(inside, "property", name=name, value=value)


def write_json(path: Path, document: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def write_environment(folder: Path, *gpus: tuple[str, tuple[int, int]], triton: str = "3.8.0", **more: object) -> None:
    told = [{"uuid": f"GPU-{place}", "name": name, "capability": list(c)} for place, (name, c) in enumerate(gpus)]
    facts = {"python": "3.12.3", "torch": "2.11.0+cu130", "triton": triton, "gpus": told, "variables": {}}
    facts |= {"driver": "580.65.06", "assembler": "ptxas 12.9"} if gpus else {}
    write_json(folder / "environment.json", facts | {"commit": "2b238f9f38" + "0" * 30, "sources": "3d" * 32} | more)


def write_session(folder: Path, engine: str, *problems: str, **more: object) -> None:
    told = {"engine": engine, "tier": "all", "whole": True, "exit": 1 if problems else 0, "problems": list(problems)}
    write_json(folder / "session.json", told | more)


def write_session_of(folder: Path, results: list[Result], *gpus: tuple, problems: tuple = (), **more: object) -> None:
    """All that a session leaves, on these GPUs, or in the interpreter without any."""
    write_environment(folder, *gpus)
    write_session(folder, "gpu" if gpus else "interpreter", *problems, **more)
    write_junit(folder / "junit.xml", results)


def write_bundle(folder: Path, result: Result, wrong: object, **more: object) -> Path:
    """A failure's bundle without its tensors, in the failures of the run `folder`."""
    path = folder / "failures" / "".join(one if one.isalnum() else "_" for one in result.name)[:80] / "bundle.json"
    test = f"{result.group.replace('.', '/')}.py::{result.name}"
    told = {"format": 1, "id": CASE, "case": {}, "test": test, "kernel": result.kernel, "failure": result.failure}
    return write_json(path, told | {"environment": {}, "wrong": wrong, "repro": []} | more)


def named(kernel: str, case: str = CASE) -> str:
    return f"test_kernel_equals_the_reference[{case}-{kernel}]"


def wrong_tile() -> dict:
    """Of [33, 272] outputs in cells of 1 x 4: most rows, columns 64 to 127."""
    rows = [[4 * (16 <= column < 32) * (row % 2) for column in range(68)] for row in range(33)]
    return {"shape": [33, 272], "cell": [1, 4], "wrong": rows}


def gate_results(*capabilities: tuple[int, int], triton: str = "3.8.0", red: str = "") -> list[Result]:
    """Gates of every kernel; those whose id holds `red` fail."""
    found = {}
    for gpu in [next(gpu for gpu in CARDS if gpu.capability == capability) for capability in capabilities]:
        arch = gates.arch_name(gpu.capability)
        for launch in _launches(gpu, triton):
            name = gates.launch_id(gpu.capability, launch).split("-", 1)[1]
            facts = f"instructions={architecture(gpu).matrix_instruction}.m64n64k16 shared=53504 registers=152"
            told = {"function": launch.kernel, "assembler": "ptxas 12.9", "facts": facts}
            one = Result(name, group=f"compile-gates.triton-{triton}.{arch}", properties=told)
            if red and red in name:
                one.failure = f"{name} on {arch}: the stack is 16 bytes a thread (spilled registers), but should be 0"
                one.text = f"nox -s compile-gates -- --launch {name} --arch {arch} --triton {triton}"
            found[one.group, name] = one
    return list(found.values())


def _launches(gpu: Gpu, triton: str) -> list[Launch]:
    options = {"triton": triton, "input_scales": True}
    sizes = product(subjects.KERNELS, subjects.SHAPES, subjects.TOKENS)
    plans = (plan_layer(gpu, shape, tokens, kernel=kernel, **options) for kernel, shape, tokens in sizes)
    return list(dict.fromkeys(launch for plan in plans for launch in plan.launches))


KERNELS = ("prefill_w4a16", "decode_w4a16", "prefill_w4a16_pair", "prefill_w4a4")
ROW = {"kernel": "prefill_w4a16", "gpu": "NVIDIA H200", "triton": "3.8.0", "shape": "GLM-4.7", "tokens": 4096}
ROW |= {"milliseconds": 1.234, "baseline": "recorded at 2b238f9", "ratio": 1.02, "roofline": 0.71, "digest": "6f" * 32}


def failing(kernel: str = KERNELS[0], case: str = CASE, said: str = JUDGED) -> Result:
    """A test of a case that fails, as pytest writes it: the message is cut, the text is not."""
    message = f"AssertionError: {said.partition(chr(10))[0]}\n[+9 more lines; full report in element text]"
    text = "def test(): ...\n" + "\n".join(f"E       {line}" for line in f"AssertionError: {said}".splitlines())
    return Result(
        named(kernel, case), kernel, message, text=f"{text}\n\ntests/moe/test_orderfree.py:41: AssertionError"
    )


def write(root: Path) -> Path:
    """A night: a failing H200, an RTX 5090 with untested cases, an L40S that died, the interpreter, gates, goldens."""
    good = [Result(named(kernel, f"case-{place}"), kernel) for kernel in KERNELS for place in range(20)]
    bad = [failing(), *(failing(case=f"random-{place}", said=f"{place} is wrong") for place in range(5))]
    h200 = root / "h200-3.8.0"
    write_session_of(h200 / "NVIDIA-H200", [*good, *bad], H200, H200, exit=1)
    write_bundle(h200 / "NVIDIA-H200", bad[0], wrong_tile())
    told = {"engine": "sm_90", "device": "NVIDIA H200", "triton": "3.8.0"}
    write_junit(h200 / "golden.xml", [Result(f"{CASE}/w4a16", group="golden.sm_90")], "golden", **told)
    rows = [ROW | {"tokens": 2 ** (8 + n), "milliseconds": 0.2 * 2**n, "ratio": 0.97 + 0.02 * n} for n in range(5)]
    (h200 / "bench.jsonl").write_text("\n".join(map(json.dumps, rows)))
    owed = [f"UNTESTED: case-{place} by {KERNELS[3]}" for place in range(10)]
    owed.append("UNTESTED: 7 more of the 312 cases by kernel that are due on this GPU")
    write_session_of(root / "rtx5090-3.8.0" / "NVIDIA-GeForce-RTX-5090", good[:60], RTX_5090, problems=tuple(owed))
    write_environment(root / "l40s-3.9.0" / "NVIDIA-L40S", ("NVIDIA L40S", (8, 9)), triton="3.9.0")
    write_session_of(root / "cpu-3.8.0", good)
    gated = gate_results((8, 0), (8, 9), (9, 0), (12, 0), red="w4a4_down_specialized")
    write_junit(root / "gates" / "compile-gates.xml", gated, "compile-gates")
    (root / "gates" / "summary.md").write_text("## Compile gates\n")
    (root / "gates" / "core.1234").write_text("nobody knows")
    (root / "gates" / "cut-short.xml").write_text("<testsuites><testsuite name='pytest'><testcase")
    return root
