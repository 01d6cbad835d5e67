"""A session on a GPU that is not there, cut into parts: each owes its own, and all of them owe all."""

import json

import pytest

from ..ci import hosts
from .tree import copy, run_pytest

_DUE = """
import pytest
from nvfp4_suite.cases.layers import ALL
from nvfp4_suite.kernels.registry import KERNELS
PAIRS = [(case, kernel) for kernel in KERNELS.values() for case in ALL if kernel.promise.takes(case)]
LEFT = PAIRS[5]
WORDS = f"{LEFT[0].id} by {LEFT[1].name}"
@pytest.mark.due
@pytest.mark.parametrize(("case", "kernel"), PAIRS)
def test_due(case, kernel, device): pass
"""
_NEVER = _DUE.replace("PAIRS)\n", "[pair for pair in PAIRS if pair != LEFT])\n")
_SKIPPED = _DUE.replace("device): pass", "device):\n    if (case, kernel) == LEFT: pytest.skip(WORDS)")
_SAME = """
import pytest
@pytest.mark.parametrize("number", range(5))
def test_same(number, device): pass
"""


@pytest.fixture
def shards(tmp_path):
    """Runs both parts of a session whose tests are `source`: their processes, and the manifests that they left."""
    tree = copy(tmp_path / "tree")
    planted = tree / "tests" / "planted"
    planted.mkdir()
    (planted / "__init__.py").touch()
    host = hosts.write(tmp_path / "host.json", hosts.HOSTS["one"])
    environment = {"FAKE_HOST": str(host), "NVFP4_SUITE_LEASES": str(tmp_path / "leases")}
    environment |= {"PYTHONPATH": str(hosts.FAKES)}

    def run(source: str, *arguments: str, workers: tuple[int, int] = (0, 0)) -> tuple[list, list[dict]]:
        (planted / "test_planted.py").write_text(source)
        how = ("--engine=gpu", "--splits=2", "--splitting-algorithm=least_duration", *arguments)
        children = [
            run_pytest(*how, f"--group={n}", f"-n{count}", f"--artifacts={tmp_path / n}", cwd=tree, **environment)
            for n, count in zip("12", workers, strict=True)
        ]
        return children, [json.loads((tmp_path / part / "manifest.json").read_text()) for part in "12"]

    run.folder = planted
    return run


@pytest.mark.long
def test_a_shard_owes_its_part_and_all_of_them_owe_all(shards):
    """Through xdist, whose workers alone collect tests, on hosts of unequal size, with tests that look the same."""
    (shards.folder / "test_a.py").write_text(_SAME)
    (shards.folder / "test_z.py").write_text(_SAME.replace("@", "@pytest.mark.long\n@"))
    children, (first, second) = shards(_DUE, "-rA", workers=(1, 2))
    assert [child.returncode for child in children] == [0, 0], children[0].stdout + children[1].stdout
    assert (first["shard"], second["shard"]) == ([1, 2], [2, 2])
    assert first["due"] == second["due"] == sorted(first["ran"] + second["ran"])
    assert min(len(first["ran"]), len(second["ran"])) >= len(first["due"]) // 2 - 5
    lines = [line for child in children for line in child.stdout.splitlines()]
    same = [line for line in lines if line.startswith("PASSED") and "test_same" in line]
    assert len(same) == len(set(same)) == 10, same


def test_a_case_that_no_test_has_is_missed_by_every_shard(shards):
    children, _ = shards(_NEVER)
    for child in children:
        assert child.returncode == 1
        assert [line.split(":")[0] for line in child.stdout.splitlines() if "UNTESTED" in line] == ["UNTESTED"]


def test_a_test_that_a_shard_skips_is_missed_by_it_alone(shards):
    children, (first, second) = shards(_SKIPPED)
    assert sorted(child.returncode for child in children) == [0, 1]
    assert len(first["due"]) == len(first["ran"]) + len(second["ran"]) + 1
