"""The hash of the sources, and the places where nothing may be recorded."""

import hashlib
import json
import os
import re
import subprocess

import pytest
import torch

from nvfp4_suite.ci import exact, provenance
from nvfp4_suite.ci.golden import GOLDEN
from nvfp4_suite.ci.golden_file import Refused

FILES = {"cases/b.py": "b = 1\n", "kernels/device/a.py": "a = 1\n", "golden/exact.json": "{}\n", "README.md": "\n"}


@pytest.fixture
def tree(tmp_path):
    """A committed tree of two source files, a golden file and a page."""
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--quiet", "--message", "first")
    return tmp_path


def git(root, *arguments) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


def test_the_sources_digest_is_that_of_sorted_lines_of_hash_and_path(tree):
    paths = ("cases/b.py", "kernels/device/a.py")
    lines = "".join(f"{hashlib.sha256(FILES[path].encode()).hexdigest()}  {path}\n" for path in paths)
    assert provenance.sources_digest(tree) == hashlib.sha256(lines.encode()).hexdigest()


def test_the_sources_digest_sees_content_names_and_new_files_of_the_rooms_alone(tree):
    before = provenance.sources_digest(tree)
    (tree / "README.md").write_text("other\n")
    (tree / "golden" / "exact.json").write_text("[]\n")
    assert provenance.sources_digest(tree) == before
    (tree / "cases" / "b.py").write_text("b = 2\n")
    content = provenance.sources_digest(tree)
    (tree / "cases" / "b.py").rename(tree / "cases" / "c.py")
    name = provenance.sources_digest(tree)
    (tree / "cases" / "d.py").touch()
    assert len({before, content, name, provenance.sources_digest(tree)}) == 4


def test_a_clean_tree_gives_its_commit(tree):
    assert provenance.clean_commit(tree) == git(tree, "rev-parse", "HEAD").strip()


def test_golden_may_differ_because_several_engines_are_recorded_in_a_row(tree):
    (tree / "golden" / "exact.json").write_text("[]\n")
    (tree / "golden" / "new.json").touch()
    assert provenance.clean_commit(tree)


@pytest.mark.parametrize("path", ["cases/b.py", "kernels/new.py", "README.md"])
def test_any_other_change_is_refused_by_name(tree, path):
    (tree / path).write_text("changed\n")
    with pytest.raises(Refused, match=f"dirty(?s:.*){path}"):
        provenance.clean_commit(tree)


def test_what_is_staged_is_a_change_too(tree):
    (tree / "cases" / "b.py").write_text("changed\n")
    git(tree, "add", ".")
    with pytest.raises(Refused, match="dirty"):
        provenance.clean_commit(tree)


def test_a_tree_without_git_is_refused(tmp_path):
    with pytest.raises(Refused, match="record --out FILE"):
        provenance.clean_commit(tmp_path)


def test_a_host_without_git_is_refused(tree, monkeypatch):
    monkeypatch.setenv("PATH", str(tree))
    with pytest.raises(Refused, match="there is no git here"):
        provenance.clean_commit(tree)


def test_ci_is_refused(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    provenance.refuse_in_ci()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(Refused, match="CI is set to 'true'"):
        provenance.refuse_in_ci()


def facts_in_schema(engine: str) -> set[str]:
    schema = json.loads(GOLDEN.with_name(exact.SCHEMA).read_text(encoding="utf-8"))
    return set(schema["$defs"][engine]["required"]) - {"check"}


@pytest.mark.parametrize("engine", ["reference", "interpreter"])
def test_provenance_has_the_facts_of_the_schema(engine):
    found = provenance.provenance(engine)
    assert found.keys() == facts_in_schema(engine)
    assert all(found.values())


def test_provenance_of_a_gpu_names_card_driver_and_assembler(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 580.1\necho 580.1\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    found = provenance.provenance("sm_90")
    assert found.keys() == facts_in_schema("gpu")
    assert (found["device"], found["driver"]) == ("NVIDIA H200", "580.1")
    assert re.fullmatch(r"ptxas 1\d\.\d+", found["assembler"])
