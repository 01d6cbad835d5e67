"""What CONTRIBUTING.md and ci/RUNNER.md show is what works: their very examples, in a copy of the tree."""

import json
import re
from pathlib import Path

import pytest

from nvfp4_suite.ci import matrix, runners

from ..meta.tree import ROOT, copy_all, run_pytest

CASE = "orderfree-e6k2h64i48-t9-hot-silu-bf16"
THEIRS = """
from nvfp4_suite.reference import moe
def pack(banks): return banks
def layer(x, banks, weights, ids, **options):
    return moe.expert_layer(x, banks, weights, ids, rounding="w4a16", **options).to(x.dtype)
"""


def example(heading: str) -> str:
    """The block under `heading` of CONTRIBUTING.md; a newcomer has it in under ten lines."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"^```\w+\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert len(block.splitlines()) < 10
    return block


@pytest.fixture
def tree(tmp_path) -> Path:
    return copy_all(tmp_path / "tree")


def put(path: Path, before: str, text: str) -> None:
    """Adds `text` behind the line that ends with `before`."""
    found = path.read_text()
    assert found.count(before) == 1
    path.write_text(found.replace(before, before + text))


def test_a_runner_is_one_entry(tree):
    put(tree / "ci" / "runners.json", '"runners": [\n', example("A runner") + ",\n")
    jobs = matrix.matrix("nightly", runners.read(tree / "ci" / "runners.json"), matrix.tree_at(tree))["include"]
    entry = json.loads(example("A runner"))
    (job,) = (one for one in jobs if one["runner"] == entry["name"])
    assert job["job"] == "rtx-5090-3.8.0" and job["labels"] == entry["labels"]
    assert len(jobs) == 1 + len(matrix.matrix("nightly", runners.read(), matrix.tree_at(tree))["include"])


@pytest.mark.long
def test_a_case_is_a_line_and_a_kernel_an_entry(tree):
    """The case runs by our kernels and by theirs, which only has to be a right one."""
    table, line = example("A case").splitlines(keepends=True)
    put(tree / "cases" / "layers.py", table.removeprefix(" "), line.removeprefix("+"))
    put(tree / "kernels" / "registry.py", (ROOT / "kernels" / "registry.py").read_text(), example("A kernel"))
    (tree / "their_moe.py").write_text(THEIRS)
    assert f"`{CASE}`" in (ROOT / "CONTRIBUTING.md").read_text()
    child = run_pytest("--case", CASE, "-v", "tests/moe/test_orderfree.py", cwd=tree)
    assert child.returncode == 0, child.stdout + child.stderr
    passed = re.findall(rf"\[{CASE}-(\w+)\] PASSED", child.stdout)
    assert {"theirs", "prefill_w4a16"} <= set(passed)


# Setting up a runner


def page() -> str:
    return (ROOT / "ci" / "RUNNER.md").read_text()


def test_the_page_gives_a_runner_the_labels_that_the_list_asks_for():
    given = re.search(r"--labels (\S+)", page())[1].split(",")
    theirs = ["self-hosted", "linux", "x64"]  # that a runner gives itself
    h200 = next(runner for runner in runners.read() if runner.name == "h200")
    assert list(h200.labels) == theirs + given


def test_the_page_sets_up_the_hook_as_the_hook_wants_it():
    text = page()
    hook = re.search(r"ACTIONS_RUNNER_HOOK_JOB_STARTED=(\S+)\"", text)[1]
    assert f"ci/job_started.sh {hook}" in text
    beside = Path(hook).with_name("repository")
    assert re.search(rf'^echo "OWNER/NAME main" \| sudo tee {beside}$', text, re.MULTILINE)


def test_what_the_pages_name_is_there():
    for path in (ROOT / "CONTRIBUTING.md", ROOT / "ci" / "RUNNER.md"):
        text = path.read_text()
        links = re.findall(r"\]\(([^)#]+)\)", text)
        assert links and [link for link in links if not (path.parent / link).exists()] == []
        sessions = set(re.findall(r"nox -s ([\w-]+)", text)) - {"bisect"}
        noxfile = (ROOT / "noxfile.py").read_text()
        assert {one for one in sessions if f"def {one.replace('-', '_')}(session" not in noxfile} == set()
