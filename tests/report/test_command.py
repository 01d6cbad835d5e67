"""The command: what it writes, its exit codes, and what it needs."""

import sys

import pytest

from nvfp4_suite.ci.report import __main__ as command

from ..meta.tree import ROOT, run_python
from . import fleet
from .fleet import Result


def test_page_and_summary_are_written_and_the_headline_is_printed(tmp_path, capsys):
    runs, out, summary = tmp_path / "runs", tmp_path / "new" / "report.html", tmp_path / "summary.md"
    fleet.write_session_of(runs / "run", [Result("test_one")])
    arguments = [str(runs), "--out", str(out), "--summary", str(summary)]
    assert command.main([*arguments, "--check"]) == 0
    assert capsys.readouterr().out == f"Nothing is red in 1 run\nNothing ran on a GPU.\n{out}\n"
    assert out.read_text().startswith("<!doctype html>") and summary.read_text().startswith("## Nothing is red")
    assert command.main([*arguments, "--expect", "run,b200-3.8.0", "--expect", "gb10"]) == 0
    assert capsys.readouterr().out.startswith("2 of 3 runs are red\n")
    assert command.main([*arguments, "--expect", "b200-3.8.0", "--check"]) == 1
    assert command.main([*arguments, "--expect", "b200-3.8.0", "--before", str(runs)]) == 0
    assert '<span class="verdict bad">new</span>' in out.read_text() and "NEW <b>b200" in summary.read_text()
    assert [path.name for path in tmp_path.rglob("*.tmp")] == []


def test_wrong_arguments_are_refused(tmp_path, capsys):
    for arguments in ([str(tmp_path / "nowhere")], []):
        with pytest.raises(SystemExit) as exit:
            command.main(arguments)
        assert exit.value.code == 2
    assert "RUNS" in capsys.readouterr().err


def test_it_needs_neither_torch_nor_triton(tmp_path):
    fleet.write(tmp_path / "runs")
    program = f"""
import sys
sys.modules.update(dict.fromkeys(["torch", "triton", "safetensors", "numpy", "jsonschema"]))  # importing them raises
from nvfp4_suite.ci.report.__main__ import main
sys.exit(main([{str(tmp_path / "runs")!r}, "--out", {str(tmp_path / "report.html")!r}]))
"""
    child = run_python("-c", program, cwd=ROOT)
    assert child.returncode == 0, child.stderr
    assert "5 of 8 runs are red" in child.stdout
    assert sys.modules.get("torch") is not None
