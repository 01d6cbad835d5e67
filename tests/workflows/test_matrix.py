"""The jobs of each tier, made of the list of runners; what is empty or unknown is an error."""

import json
import shutil

import pytest

from nvfp4_suite.ci import matrix, runners
from nvfp4_suite.ci.matrix import Tree
from nvfp4_suite.ci.runners import Runner, Unknown
from nvfp4_suite.kernels.releases import TRITONS

from ..meta.tree import ROOT

LABELS = ("self-hosted", "linux", "gpu")
FLEET = (
    Runner("h200", "NVIDIA H200", "sm_90", ("3.6.0", "3.8.0"), 2, (*LABELS, "sm90")),
    Runner("rtx-5090", "NVIDIA GeForce RTX 5090", "sm_120", ("3.8.0",), 1, (*LABELS, "sm120")),
)
TREE = Tree("2.13.0", bench=False)


def jobs(tier: str, fleet=FLEET, tree: Tree = TREE, **choice: str) -> dict[str, dict]:
    return {job["job"]: job for job in matrix.matrix(tier, fleet, tree, **choice)["include"]}


def test_nightly_is_every_runner_triton_and_shard():
    found = jobs("nightly")
    assert list(found) == [f"h200-{t}-{part}of2" for t in ("3.6.0", "3.8.0") for part in (1, 2)] + ["rtx-5090-3.8.0"]
    assert found["h200-3.6.0-2of2"] == {
        "job": "h200-3.6.0-2of2",
        "name": "NVIDIA H200 (sm_90), Triton 3.6.0, torch 2.13.0, part 2 of 2, no bench yet",
        "runner": "h200",
        "labels": ["self-hosted", "linux", "gpu", "sm90"],
        "kind": "NVIDIA H200 (sm_90)",
        "triton": "3.6.0",
        "group": 2,
        "splits": 2,
        "bench": False,
    }


def test_a_bench_that_is_there_is_run():
    (job,) = jobs("dispatch", tree=Tree("2.13.0", bench=True), runner="rtx-5090").values()
    assert job["bench"] is True
    assert job["name"] == "NVIDIA GeForce RTX 5090 (sm_120), Triton 3.8.0, torch 2.13.0"


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        ({"runner": "rtx-5090"}, ["rtx-5090-3.8.0"]),
        ({"triton": "3.6.0"}, ["h200-3.6.0-1of2", "h200-3.6.0-2of2"]),
        ({"runner": "h200", "triton": "3.8.0"}, ["h200-3.8.0-1of2", "h200-3.8.0-2of2"]),
    ],
)
def test_dispatch_chooses(choice, chosen):
    assert list(jobs("dispatch", **choice)) == chosen


def test_dispatch_of_all_is_the_nightly_run():
    assert jobs("dispatch") == jobs("nightly")


def test_pull_requests_have_tritons_and_no_runner():
    found = jobs("pr", fleet=())
    assert [job["triton"] for job in found.values()] == [TRITONS[0], "3.8.0", TRITONS[-1]]
    assert all(set(job) == {"job", "name", "triton"} for job in found.values())


@pytest.mark.parametrize(
    ("tier", "fleet", "choice", "message"),
    [
        ("weekly", FLEET, {}, "tier is 'weekly', but should be of nightly, pr, dispatch"),
        ("", FLEET, {}, "tier is ''"),
        ("nightly", (), {}, "runner is '', but should be of none at all"),
        ("dispatch", FLEET, {"runner": "h100"}, "runner is 'h100', but should be of h200, rtx-5090"),
        ("dispatch", FLEET, {"triton": "3.5.0"}, "triton is '3.5.0', but should be of 3.6.0, 3.8.0, which they have"),
        ("dispatch", FLEET, {"runner": "rtx-5090", "triton": "3.6.0"}, "of 3.8.0, which rtx-5090 have"),
        ("nightly", FLEET, {"runner": "h200"}, "only 'dispatch' chooses"),
        ("pr", FLEET, {"triton": "3.8.0"}, "only 'dispatch' chooses"),
        ("nightly", FLEET * 52, {}, "has 260 jobs, but should have 1 to 256"),
    ],
)
def test_what_is_empty_or_unknown_is_refused(tier, fleet, choice, message):
    with pytest.raises(Unknown, match=message):
        matrix.matrix(tier, fleet, TREE, **choice)


# The list of runners


@pytest.fixture
def listed(tmp_path):
    """The runners of a file in which an entry, otherwise right, has these values; None takes one away."""
    shutil.copy(ROOT / "ci" / "runners.schema.json", tmp_path)

    def read(*changes: dict) -> tuple[Runner, ...]:
        right = {"name": "one", "gpu": "NVIDIA H200", "architecture": "sm_90", "tritons": ["3.8.0"], "shards": 1}
        right |= {"labels": ["self-hosted", "gpu"]}
        entries = [{key: value for key, value in (right | one).items() if value is not None} for one in changes]
        document = {"$schema": "runners.schema.json", "runners": entries}
        (tmp_path / "runners.json").write_text(json.dumps(document))
        return runners.read(tmp_path / "runners.json")

    return read


def test_an_entry_is_read(listed):
    assert listed({}) == (Runner("one", "NVIDIA H200", "sm_90", ("3.8.0",), 1, ("self-hosted", "gpu")),)
    assert listed({"gpu": "A card of next year", "architecture": "sm_120"})[0].kind == "A card of next year (sm_120)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shards": 0}, r"breaks its schema at \$.runners\[0\].shards"),
        ({"shards": None}, "'shards' is a required property"),
        ({"shard": 2}, "'shard' was unexpected"),
        ({"labels": ["linux", "gpu"]}, "'self-hosted' was expected"),
        ({"labels": ["self-hosted"]}, r"labels: \['self-hosted'\] is too short"),
        ({"labels": ["self-hosted", "${{ x }}"]}, "does not match"),
        ({"name": "a/b"}, "'a/b' does not match"),
        ({"tritons": []}, "tritons"),
        ({"tritons": ["3.8"]}, "'3.8' does not match"),
        ({"tritons": ["3.5.0"]}, "triton is '3.5.0', but should be one of 3.6.0"),
        ({"architecture": "sm_91"}, "architecture is 'sm_91', but should be of sm_80"),
        ({"architecture": "sm_100"}, "architecture is 'sm_100', but that of NVIDIA H200 is sm_90"),
        ({"gpu": "Thor", "architecture": "sm_110", "tritons": ["3.6.0"]}, "its ptxas knows no sm_110a"),
    ],
)
def test_a_wrong_entry_is_named(listed, change, message):
    with pytest.raises(Unknown, match=message):
        listed(change)


def test_a_list_of_nothing_and_two_of_a_name_are_refused(listed):
    with pytest.raises(Unknown, match="runners"):
        listed()
    with pytest.raises(Unknown, match="2 entries with the name 'one'"):
        listed({}, {"gpu": "NVIDIA A100-SXM4-80GB", "architecture": "sm_80"})


def test_a_file_that_is_no_json_is_refused(listed, tmp_path):
    listed({})
    (tmp_path / "runners.json").write_text("{")
    with pytest.raises(Unknown, match=r"runners\.json should be JSON"):
        runners.read(tmp_path / "runners.json")


# The command


def test_the_command_writes_what_a_step_puts_out(tmp_path, capsys):
    file = tmp_path / "output"
    file.write_text("before=1\n")
    assert matrix.main(["--tier", "nightly", "--output", str(file)]) == 0
    lines = file.read_text().splitlines()
    assert lines[0] == "before=1" and len(lines) == 3
    found = json.loads(capsys.readouterr().out)
    assert json.loads(lines[1].removeprefix("matrix=")) == found
    assert lines[2] == "jobs=" + ",".join(job["job"] for job in found["include"])


def test_the_command_writes_nothing_of_what_it_refuses(tmp_path, capsys):
    file = tmp_path / "output"
    assert matrix.main(["--tier", "dispatch", "--runner", "nobody", "--output", str(file)]) == 1
    assert not file.exists()
    assert "no matrix: runner is 'nobody'" in capsys.readouterr().err


def test_the_tree_is_asked_for_torch_and_a_bench(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    assert matrix.tree_at(tmp_path).bench is False
    (tmp_path / "bench").mkdir()
    assert matrix.tree_at(tmp_path).bench is True
    assert matrix.tree_at(ROOT).torch.count(".") == 2
