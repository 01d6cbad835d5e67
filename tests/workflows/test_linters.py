"""The linters of `nox -s lint` find what they are there for, without a network; and it runs them all."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..meta.tree import ROOT

ZIZMOR = ("zizmor", "--offline", "--persona", "auditor")
FORM = ("check-jsonschema", "--builtin-schema", "vendor.github-workflows")
TIMEOUT = ("check-jsonschema", "--builtin-schema", "custom.github-workflows-require-timeout")
CHECKOUT = "actions/checkout@de0fac2e4500dabe0009e67214ff5f5447ce83dd # v6.0.2"


def lint(tool: tuple[str, ...], *paths: Path) -> subprocess.CompletedProcess:
    """One of the linters, of this Python's environment."""
    program = shutil.which(tool[0], path=Path(sys.executable).parent)
    assert program, f"{tool[0]} is not installed beside {sys.executable}"
    return subprocess.run([program, *tool[1:], *map(str, paths)], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("tool", "file", "old", "new", "said"),
    [
        (ZIZMOR, "pr.yml", CHECKOUT, "actions/checkout@v6", "unpinned-uses"),
        (ZIZMOR, "nightly.yml", "permissions: {}", "permissions: write-all", "excessive-permissions"),
        (ZIZMOR, "nightly.yml", '--expect "$KIND"', '--expect "${{ inputs.runner }}"', "template-injection"),
        (ZIZMOR, "bisect.yml", "          persist-credentials: false\n", "", "artipacked"),
        (ZIZMOR, "pr.yml", "  pull_request:\n", "  pull_request_target:\n", "dangerous-triggers"),
        (ZIZMOR, "pr.yml", "runs-on: ubuntu-24.04", "runs-on: [self-hosted, gpu]", "self-hosted-runner"),
        (TIMEOUT, "nightly.yml", "    timeout-minutes: 180\n", "", "timeout-minutes"),
        (FORM, "nightly.yml", "    runs-on: ${{ matrix.labels }}\n", "    run-on: ${{ matrix.labels }}\n", "gpu"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_violation_is_found(tool, file, old, new, said, tmp_path):
    path = Path(shutil.copytree(ROOT / ".github", tmp_path / ".github"), "workflows", file)
    assert lint(tool, path).returncode == 0
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    child = lint(tool, path)
    assert child.returncode != 0 and said in child.stdout + child.stderr


def test_a_runner_that_breaks_the_schema_is_found(tmp_path):
    schema = ("check-jsonschema", "--schemafile", str(ROOT / "ci" / "runners.schema.json"))
    runners = Path(shutil.copy(ROOT / "ci" / "runners.json", tmp_path))
    assert lint(schema, runners).returncode == 0
    runners.write_text(runners.read_text().replace('"shards"', '"shard"', 1))
    child = lint(schema, runners)
    assert child.returncode == 1 and "shard" in child.stdout


def test_the_session_runs_each_of_them():
    text = (ROOT / "noxfile.py").read_text().partition("def lint")[2].partition("@nox.session")[0]
    words = ("ruff", "zizmor", "--offline", "vendor.github-workflows", TIMEOUT[-1], "ci/runners.json")
    assert [word for word in words if f'"{word}"' not in text] == []
