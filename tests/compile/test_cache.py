"""Facts that are kept between runs: found only where nothing differs, never wrong, whatever happened to the files."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nvfp4_suite.ci import gate_cache, gate_compile
from nvfp4_suite.ci.gate_cache import Cache
from nvfp4_suite.ci.gate_facts import Facts
from nvfp4_suite.contract.gpus import Gpu
from nvfp4_suite.contract.shapes import LayerShape
from nvfp4_suite.kernels.plan import plan_layer

from .trees import ROOT, outcomes, planted

LAUNCH = plan_layer(Gpu("", (9, 0)), LayerShape(256, 8, 2048, 512), 1).launch("sum_routes")
KEY = "ab" + "0" * 62


@pytest.fixture(scope="module")
def facts() -> Facts:
    return gate_compile.compile_in_child(LAUNCH, (9, 0))


def test_what_is_kept_is_found_again(facts, tmp_path):
    Cache(tmp_path).put(KEY, facts)
    assert Cache(tmp_path).get(KEY) == facts
    assert Cache(tmp_path).get("cd" + KEY[2:]) is None
    assert not list(tmp_path.rglob("*.tmp"))


def test_nothing_is_kept_without_a_directory(facts):
    Cache(None).put(KEY, facts)
    assert Cache(None).get(KEY) is None


def entry(directory: Path) -> Path:
    (path,) = directory.rglob("*.json")
    return path


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-20]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\xff" * 100),
        lambda path: path.write_text("null"),
        lambda path: path.write_text(path.read_text().replace('"registers": ', '"registers": 1')),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["truncated", "empty", "no text", "no entry", "a digit more", "a folder"],
)
def test_a_damaged_entry_is_none(damage, facts, tmp_path):
    Cache(tmp_path).put(KEY, facts)
    damage(entry(tmp_path))
    assert Cache(tmp_path).get(KEY) is None


def test_an_entry_under_another_key_is_none(facts, tmp_path):
    Cache(tmp_path).put(KEY, facts)
    entry(tmp_path).rename(tmp_path / "ab" / f"{'1' * 62}.json")
    assert Cache(tmp_path).get("ab" + "1" * 62) is None


def test_facts_of_an_older_form_are_none(facts, tmp_path):
    values = facts.as_json()
    for wrong in (values | {"registers": "32"}, {"registers": 32}, values | {"more": 1}):
        Cache(tmp_path).put(KEY, facts)
        entry(tmp_path).write_text(json.dumps({"digest": gate_cache._digest(KEY, wrong), "facts": wrong}))
        assert Cache(tmp_path).get(KEY) is None


def test_a_full_disk_costs_the_entry_only(facts, tmp_path):
    """With no room for stderr either, where that is a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        Cache(tmp_path).put(KEY, facts)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert Cache(tmp_path).get(KEY) is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    Cache(tmp_path).put(KEY, facts)
    assert Cache(tmp_path).get(KEY) == facts


def test_a_directory_that_cannot_be_made(facts, tmp_path, capfd):
    (tmp_path / "file").touch()
    Cache(tmp_path / "file").put(KEY, facts)
    assert "keeps nothing" in capfd.readouterr().err


WRITER = """
import sys, pathlib
from nvfp4_suite.ci.gate_cache import Cache
from nvfp4_suite.ci.gate_facts import Facts
import json
cache, facts = Cache(pathlib.Path(sys.argv[1])), Facts.from_json(json.loads(sys.argv[2]))
print("ready", flush=True)
while True:
    cache.put(sys.argv[3], facts)
"""


def writing(facts: Facts, directory: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", WRITER, str(directory), json.dumps(facts.as_json()), KEY]
    child = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    return child


def test_two_runs_at_once_and_one_that_is_killed(facts, tmp_path):
    """A reader beside two writers of one key sees the entry or none, also after kill -9 in the middle of a write."""
    children = [writing(facts, tmp_path) for _ in range(2)]
    end = time.monotonic() + 1
    seen = set()
    while time.monotonic() < end or facts not in seen:
        seen.add(Cache(tmp_path).get(KEY))
    for child in children:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert seen <= {facts, None}
    assert Cache(tmp_path).get(KEY) == facts


OTHERS = {
    "another constexpr": (replace(LAUNCH, constexprs=(("BLOCK", 256),)), (9, 0), None),
    "another type": (replace(LAUNCH, arguments=(("route_out", "*fp16"), *LAUNCH.arguments[1:])), (9, 0), None),
    "less divisible": (replace(LAUNCH, divisible=LAUNCH.divisible[1:]), (9, 0), None),
    "more warps": (replace(LAUNCH, num_warps=8), (9, 0), None),
    "more stages": (replace(LAUNCH, num_stages=2), (9, 0), None),
    "fused": (replace(LAUNCH, fp_fusion=True), (9, 0), None),
    "another kernel": (replace(LAUNCH, kernel="pointwise.weigh_input"), (9, 0), None),
    "another architecture": (LAUNCH, (10, 0), None),
    "another's PTX": (LAUNCH, (9, 0), (8, 9)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_makes_another_binary_has_another_key(name):
    assert gate_cache.key(*OTHERS[name]) != gate_cache.key(LAUNCH, (9, 0))


def test_what_makes_no_other_binary_has_the_same_key():
    same = replace(LAUNCH, stage="another", instruction="wgmma")
    assert gate_cache.key(same, (9, 0)) == gate_cache.key(LAUNCH, (9, 0))


def test_another_assembler_has_another_key(monkeypatch, tmp_path):
    from triton import knobs

    (tmp_path / "ptxas").symlink_to(knobs.nvidia.ptxas.path)
    before = gate_cache.key(LAUNCH, (9, 0))
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tmp_path / "ptxas"))
    gate_cache._toolchain.cache_clear()
    assert gate_cache.key(LAUNCH, (9, 0)) != before
    monkeypatch.undo()
    gate_cache._toolchain.cache_clear()


@pytest.mark.parametrize(
    ("file", "right", "wrong", "reused"),
    [
        ("gemv.py", "tl.constexpr(2.0**14)", "tl.constexpr(2.0**13)", False),
        ("blocks.py", "sums = sums * tl.load(topk_weights", "sums = sums + tl.load(topk_weights", False),
        ("routing.py", "tl.arange(0, CHUNK)\n    expert", "tl.arange(0, CHUNK) + 0\n    expert", True),
    ],
    ids=["a constant", "a function that it calls", "another kernel"],
)
def test_facts_are_reused_where_no_source_changed(file, right, wrong, reused, tmp_path):
    launch = plan_layer(Gpu("", (9, 0)), LayerShape(256, 8, 2048, 512), 1, kernel="decode").launch("down")
    (first,) = outcomes(ROOT, launch, (9, 0), directory=tmp_path / "cache")
    (again,) = outcomes(ROOT, launch, (9, 0), directory=tmp_path / "cache")
    assert (first.reused, again.reused, again.facts) == (False, True, first.facts)
    tree = planted(tmp_path / "tree", file, right, wrong)
    (other,) = outcomes(tree, launch, (9, 0), directory=tmp_path / "cache")
    assert other.reused == reused
